"""Find files of a GPT-NeoX checkpoint that belong to another one: another iteration, or fewer ranks than the run had.

A file of a layer records neither its iteration nor its number. The optimizer's fp32 weights, from which DeepSpeed makes
the model's, show it; without them, only the same file in another checkpoint of the run does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from neoxargs.base.problems import Problem, Problems, listed
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.checksums import archive_damage
from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.files.neox_checkpoint.files import files_of, state_file
from neoxargs.files.neox_checkpoint.optimizer import NotUsable, locate_state, partition_steps
from neoxargs.files.neox_checkpoint.pickles import TensorRef, unreadable

#: Elements of each matrix that are compared with the optimizer's.
SAMPLE = 1024
#: Other checkpoints that are compared, those of the nearest iterations.
NEIGHBOURS = 8
INCOMPLETE = "the GPT-NeoX checkpoint is incomplete"
COPY = "copy the checkpoint again from its original location, or choose another checkpoint with iteration: NUMBER"


def inconsistencies(contents: Contents) -> Iterator[Problem]:
    """Yield a problem for each way in which files of the checkpoint do not belong together."""
    for found in findings(contents):
        kind = "checkpoint-incomplete" if found.startswith(INCOMPLETE) else "checkpoint-files-mixed"
        yield Problem(f"load ({contents.folder}): {found}", hint=COPY, id=kind, about=("load", "iteration"))


def findings(contents: Contents) -> list[str]:
    """Return each way in which files of the checkpoint do not belong together."""
    if missing := _missing_stages(contents):
        return [f"{INCOMPLETE}, because its configuration sets more pipeline stages; missing: {', '.join(missing)}"]
    layers = _not_the_optimizer_s(contents) or _of_neighbour(contents)
    return [found for found in (_other_iteration(contents), _other_step(contents), layers) if found]


def require_checksums(contents: Contents, at_most: int) -> bool:
    """Compare the checksums of all files; return False if they have more than `at_most` bytes, and were not read.

    Raises Problems that name every damaged file.
    """
    files = contents.files.all()
    if sum(file.stat().st_size for file in files) > at_most:
        return False
    if damaged := [unreadable(file, why) for file in files if (why := archive_damage(file))]:
        raise Problems(problem for found in damaged for problem in found.problems)
    return True


def _missing_stages(contents: Contents) -> list[str]:
    """Return the state files of the pipeline stages that only the saved configuration shows."""
    files = contents.files
    if not files.by_layer or not contents.configurations:
        return []
    try:
        size = contents.draft.values.get("pipe_parallel_size")
    except Problems:
        return []
    stages = size.value if size else 0
    return [state_file(number) for number in range(stages * files.tensor_ranks) if number not in files.states]


def _other_iteration(contents: Contents) -> str:
    """Return which state files have another iteration than the first one, or than the folder's name."""
    by_iteration: dict[int, list[str]] = {}
    for number, file in contents.files.states.items():
        state = contents.state(number)
        iteration = state.get("iteration", state.get("total_iters"))
        if isinstance(iteration, int):
            by_iteration.setdefault(iteration, []).append(file.name)
    if len(by_iteration) > 1:
        return "the state files have different iterations: " + _by_value(by_iteration)
    named = contents.files.iteration
    if by_iteration and contents.folder.name == checkpoint_folder.tag(named or 0) and named not in by_iteration:
        (iteration,) = by_iteration
        return f"the state files are of iteration {iteration}, which contradicts the folder's name"
    return ""


def _other_step(contents: Contents) -> str:
    """Return which files of ZeRO's partitions have taken another number of optimizer steps than the others."""
    try:
        steps = partition_steps(contents)
    except NotUsable:
        return ""
    return "the optimizer files are of different steps: " + _by_value(steps) if len(steps) > 1 else ""


def _by_value(files: dict[int, list[str]]) -> str:
    """Return the files of each number, the fewest files first: they are probably the foreign ones."""
    rarest = sorted(files.items(), key=lambda item: len(item[1]))
    return "; ".join(f"{number} in {_some(names)}" for number, names in rarest)


def _some(names: list[str]) -> str:
    return listed(names, "and") if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"


def _not_the_optimizer_s(contents: Contents) -> str:
    """Return which layers have other weights than the optimizer's fp32 weights, of which the first are compared."""
    try:
        masters = locate_state(contents).masters
    except NotUsable:
        return ""
    different = [
        _place(contents, layer, rank)
        for layer, names in contents.layers.items()
        for rank in range(contents.files.tensor_ranks)
        if any(
            (parts := masters.get((rank, layer, name)))
            and len(refs[rank].shape) > 1
            and not _equal(refs[rank], parts[0].tensor, parts[0].start, min(parts[0].length, SAMPLE))
            for name, refs in names.items()
        )
    ]
    what = "are not those from which the optimizer files continue, so these files are of different iterations"
    return f"the weights in {_some(different)} {what}" if different else ""


def _place(contents: Contents, layer: int, rank: int) -> str:
    files = contents.files
    return files.layers[layer][rank].name if files.by_layer else f"layer {layer} of {files.states[rank].name}"


def _equal(weight: TensorRef, master: TensorRef, start: int, count: int) -> bool:
    """Return whether the first elements of a weight are a master weight's, rounded to the weight's type."""
    count = min(count, weight.numel)
    theirs, values = weight.elements(0, count), master.elements(start, count)
    if master.dtype != "float32" or not weight.is_contiguous or len(values) < 4 * count:
        return True  # not comparable; a truncated file is reported when it is loaded
    if weight.dtype == "bfloat16":
        words = struct.unpack(f"<{count}I", values)
        # To the nearest, ties to even.
        values = struct.pack(f"<{count}H", *((word + 0x7FFF + (word >> 16 & 1)) >> 16 & 0xFFFF for word in words))
    elif weight.dtype == "float16":
        try:
            values = struct.pack(f"<{count}e", *struct.unpack(f"<{count}f", values))
        except OverflowError:
            return True
    return weight.dtype not in ("float32", "bfloat16", "float16") or theirs == values


def _of_neighbour(contents: Contents) -> str:
    """Return which layers, but not all, have the same weights as in another checkpoint of the run.

    Training changes every matrix. If all are equal, no update lies between the two checkpoints.
    """
    ours = _checksums(contents) if contents.files.by_layer else {}
    for neighbour in _neighbours(contents) if ours else ():
        try:
            theirs = _checksums(neighbour)
        except Problems:
            continue  # it is damaged, but it is not the one to load
        equal = [place for place, sums in ours.items() if theirs.get(place) == sums]
        if 0 < len(equal) < len(ours):
            names = [_place(contents, layer, rank) for layer, rank in equal]
            same = f"the same weights as in {neighbour.folder.name}, although the other layers differ; they are of a "
            same += f"different iteration here or there (if there, move {neighbour.folder.name} to another folder)"
            return f"{_some(names)} {'has' if len(names) == 1 else 'have'} {same}"
    return ""


def _neighbours(contents: Contents) -> Iterator[Contents]:
    """Yield other checkpoints in the same folder, those of the nearest iterations first."""
    here = contents.files.iteration or 0
    others = [path for path in checkpoint_folder.checkpoints(contents.folder.parent) if path != contents.folder]
    others.sort(key=lambda path: abs(checkpoint_folder.iteration_of(path) - here))
    found = (files_of(path) for path in others[:NEIGHBOURS])
    yield from (Contents(files) for files in found if files and files.by_layer and not [*files.missing()])


def _checksums(contents: Contents) -> dict[tuple[int, int], list[int]]:
    """Return the checksums of the matrices of each layer and tensor parallel rank; those without any are left out."""
    found = {}
    for layer, names in contents.layers.items():
        for rank in range(contents.files.tensor_ranks):
            refs = [refs[rank] for refs in names.values() if len(refs[rank].shape) > 1]
            sums = [ref.storage.crc32 for ref in refs if ref.storage.crc32 is not None]
            if sums:
                found[layer, rank] = sums
    return found
