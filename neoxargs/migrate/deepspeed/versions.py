"""The configurations of a document, by number: its blocks, and every choice between duplicate sections of a block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass
from itertools import product
from math import prod

from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.migrate.as_is.keys import conflict, entries
from neoxargs.migrate.deepspeed.lenient_json import Block
from neoxargs.registry import normal
from neoxargs.resolve import Draft
from neoxargs.resolve.keys.letters import is_comment
from neoxargs.resolve.merge import draft_of
from neoxargs.resolve.yaml.nodes import Entry, Mapping, Scalar, read_plain

#: Shell variables next to a configuration, and the parameter that each one sets.
SETTINGS = {
    "PIPELINE_MP_SIZE": "model_parallel_size", "MP_SIZE": "model_parallel_size", "TP_SIZE": "model_parallel_size",
    "PP_SIZE": "pipe_parallel_size", "NUM_GPUS": "num_gpus", "NUM_NODES": "num_nodes",
}  # fmt: skip
#: Parameters that usually distinguish the configurations of a document, with short labels.
LABELS = {
    "model_parallel_size": "tensor parallel",
    "train_batch_size": "batch",
    "train_micro_batch_size_per_gpu": "micro batch",
    "gradient_accumulation_steps": "accumulation",
    "zero_optimization.stage": "ZeRO",
    "zero_optimization.overlap_comm": "overlap_comm",
    "zero_optimization.offload_optimizer.device": "optimizer offload",
    "zero_optimization.offload_optimizer.pin_memory": "pin_memory",
    "zero_optimization.offload_param.device": "parameter offload",
}
#: Versions offered for one block; the number of combinations grows exponentially with duplicate keys.
MAX_VERSIONS = 12


@dataclass
class Version:
    """One configuration that a document offers."""

    block: Block
    tree: Mapping
    draft: Draft

    def summary(self, names: Sequence[str]) -> str:
        """Return the values of these parameters with their `LABELS`."""
        values = {name: value.value for name, value in self.draft.values.items()}
        words = [f"{LABELS[name]} {values[name]}" for name in names if name in values]
        return ", ".join(words) or "sets none of these keys"

    def value(self, name: str) -> str:
        return repr(self.draft.values[name].value) if name in self.draft.values else ""


def versions(blocks: Sequence[Block]) -> list[Version]:
    """Return every configuration of a document: each block, with one of each duplicate section."""
    offered = []
    for block in blocks:
        for choice in _choices(_without_remarks(block.tree)):
            tree = Mapping([*_settings(block), *choice.entries], choice.place)
            offered.append(Version(block, tree, draft_of(tree)))
    return offered


def _without_remarks(tree: Mapping) -> Mapping:
    """Return the tree without top-level keys such as `_comment`, which DeepSpeed ignores."""
    return Mapping([entry for entry in tree.entries if not is_comment(entry.key)], tree.place)


def _choices(tree: Mapping) -> Iterator[Mapping]:
    """Yield the tree once for each way to choose one of every duplicate top-level key."""
    groups: dict[str, list[Entry]] = {}
    for entry in tree.entries:
        groups.setdefault(normal(entry.key), []).append(entry)
    # Published documents list alternatives of a section one below the other, where JSON would take the last.
    for number, choice in enumerate(product(*groups.values())):
        if number >= MAX_VERSIONS:
            break
        yield Mapping(list(choice), tree.place)


def _settings(block: Block) -> Iterator[Entry]:
    for name, (value, place) in block.settings.items():
        if name in SETTINGS:
            yield Entry(SETTINGS[name], Scalar(read_plain(value), value, False, place), place)


def chosen(offered: Sequence[Version], number: int | None, name: str) -> Version:
    """Return the version with this number (from 1), or the only one. Raises Problems that list the versions."""
    if number is not None and not 1 <= number <= len(offered):
        allowed = "1" if len(offered) == 1 else f"from 1 to {len(offered)}"
        what = f"--choose ({number}) must be {allowed}"
        raise Problems([Problem(what, Place(name, 0, 0), id="migrate-choice-out-of-range")])
    if len(offered) > 1 and not number:
        found = dict.fromkeys(problem for version in offered for problem in version.draft.problems)
        raise Problems([_offer(offered, name), *found])
    version = offered[number - 1 if number else 0]
    if problems := [*version.draft.problems, *both_precisions(entries(version.tree))]:
        raise Problems(problems)
    return version


def both_precisions(found: AnyMapping[str, Entry]) -> Iterator[Problem]:
    """Yield an error if both fp16 and bf16 are on, which DeepSpeed refuses."""
    bf16 = "bf16.enabled" if "bf16.enabled" in found else "bfloat16.enabled"
    if is_true(found.get("fp16.enabled")) and is_true(found.get(bf16)):
        what = f"fp16.enabled and {bf16} exclude each other, and DeepSpeed refuses them together"
        yield conflict(what, found[bf16].place, "set one of them to false", [found["fp16.enabled"].place])


def is_true(entry: Entry | None) -> bool:
    return entry is not None and entry.value.to_python() in (True, "true", "True")


def _offer(offered: Sequence[Version], name: str) -> Problem:
    names = [name for name in LABELS if len({version.value(name) for version in offered}) > 1]
    lines = [f"{number}: line {_line(version)}: {version.summary(names)}" for number, version in enumerate(offered, 1)]
    count = sum(map(_combinations, {id(version.block): version.block for version in offered}.values()))
    omitted = count - len(offered)
    remove = "to choose one of them, first remove the duplicate keys that you do not need"
    more = [f"and {omitted} more: {remove}"] if omitted > 0 else []
    what = "\n  ".join([f"expected one configuration, got {count}", *lines, *more])
    return Problem(what, Place(name, 0, 0), "add --choose N", id="migrate-several-configurations")


def _combinations(block: Block) -> int:
    """Return the number of ways to choose one of every duplicate key."""
    return prod(Counter(normal(entry.key) for entry in _without_remarks(block.tree).entries).values())


def _line(version: Version) -> int:
    """Return the line of the last duplicate key that the version has, or of its start."""
    keys = [normal(entry.key) for entry in version.block.tree.entries]
    several = [e.place.line for e in version.tree.entries if keys.count(normal(e.key)) > 1]
    return max(several, default=version.block.tree.place.line)
