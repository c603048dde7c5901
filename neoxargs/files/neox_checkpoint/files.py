"""The files of a GPT-NeoX checkpoint, and what their names say: layout, sizes, what is missing.

    latest                                        name of the newest checkpoint
    global_step1000/                              one checkpoint; the folder of a published one often has another name
        layer_02-model_00-model_states.pt         layer 2 of tensor parallel rank 0, with pipe_parallel_size 1 or more
        mp_rank_00_model_states.pt                counters and schedule; all weights, with pipe_parallel_size 0
        zero_pp_rank_0_mp_rank_00_optim_states.pt     optimizer state of one rank, with ZeRO
        configs/*.yml                             the configuration, since November 2021

deepy's checkpoints contain some files with the same names, and others (`DEEPY_FILES`) that GPT-NeoX's never contain.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from neoxargs.base.problems import Problem, Problems
from neoxargs.files.checkpoints import folder as checkpoint_folder

LAYER = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")
STATES = re.compile(r"mp_rank_(\d+)_model_states\.pt")
OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_?optim_states\.pt")
ZERO3 = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
#: Files that only deepy writes.
DEEPY_FILES = (checkpoint_folder.FILES, checkpoint_folder.CONFIG)


class Files:
    """The files of one checkpoint.

    layers: number of a layer -> tensor parallel rank -> file.
    states: number of a rank's state file (pipeline stage x tensor parallel size + tensor parallel rank) -> file.
    optimizer: (number of the state file, data parallel rank) -> file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.layers: dict[int, dict[int, Path]] = {}
        self.states: dict[int, Path] = {}
        self.optimizer: dict[tuple[int, int], Path] = {}
        self.zero3 = False

    @property
    def by_layer(self) -> bool:
        """Whether the weights are in a file per layer, rather than in the state files."""
        return bool(self.layers)

    @property
    def tensor_ranks(self) -> int:
        if self.by_layer:
            return 1 + max(rank for files in self.layers.values() for rank in files)
        return max(len(self.states), 1)

    @property
    def stages(self) -> int:
        """The pipeline parallel size of the run that wrote the checkpoint."""
        return max(len(self.states) // self.tensor_ranks, 1) if self.by_layer else 1

    @property
    def data_ranks(self) -> int:
        """The number of ranks over which ZeRO partitioned the optimizer state; 0 without ZeRO."""
        return 1 + max((rank for _, rank in self.optimizer), default=-1)

    @property
    def ranks(self) -> int:
        """The number of ranks that the run had, as far as the files show: one per replica without ZeRO."""
        return self.tensor_ranks * self.stages * max(self.data_ranks, 1)

    @property
    def iteration(self) -> int | None:
        """The iteration in the folder's name."""
        match = re.search(r"(\d+)$", self.folder.name)
        return int(match[1]) if match else None

    def all(self) -> list[Path]:
        """Return the files with weights and state."""
        layers = [file for files in self.layers.values() for file in files.values()]
        return [*layers, *self.states.values(), *self.optimizer.values()]

    def missing(self) -> Iterator[str]:
        """Yield the names of files that must exist, judging by those that do."""
        ranks = range(self.tensor_ranks)
        if self.by_layer:
            last = max(self.layers)
            # 1 and the layer before the final norm only transpose; the final norm is last, or before the output layer.
            blocks = [number for number in self.layers if 2 <= number <= last - 2]
            expected = [0, *range(2, max(blocks, default=1) + 1), *(number for number in self.layers if number > 1)]
            for number in dict.fromkeys(expected):
                yield from (layer_file(number, rank) for rank in ranks if rank not in self.layers.get(number, {}))
        known = {*self.states, *(number for number, _ in self.optimizer)}
        stages = max(1, -(-(1 + max(known, default=-1)) // self.tensor_ranks))
        numbers = range(stages * self.tensor_ranks) if self.by_layer else range(1 + max(known, default=-1))
        yield from (state_file(number) for number in numbers if number not in self.states)
        for number in sorted(known) if self.optimizer else ():
            for rank in range(self.data_ranks):
                if (number, rank) not in self.optimizer:
                    yield f"zero_pp_rank_{rank}_mp_rank_{number:02d}_optim_states.pt"


def layer_file(number: int, rank: int) -> str:
    return f"layer_{number:02d}-model_{rank:02d}-model_states.pt"


def state_file(number: int) -> str:
    """Return the name of a rank's state file. number: as in Files."""
    return f"mp_rank_{number:02d}_model_states.pt"


def files_of(folder: Path) -> Files | None:
    """Return the files of a folder that is a GPT-NeoX checkpoint; None if it is not one."""
    # deepy's checkpoints have files of the same names, so those that only deepy writes decide.
    if (
        not os.path.isdir(folder)
        or any((folder / name).exists() for name in DEEPY_FILES)
        or checkpoint_folder.lists_weights(folder)
    ):
        return None
    found = Files(folder)
    for path in sorted(folder.iterdir()):
        if match := LAYER.fullmatch(path.name):
            found.layers.setdefault(int(match[1]), {})[int(match[2])] = path
        elif match := STATES.fullmatch(path.name):
            found.states[int(match[1])] = path
        elif match := OPTIMIZER.fullmatch(path.name):
            found.optimizer[int(match[2]), int(match[1])] = path
        elif ZERO3.fullmatch(path.name):
            found.zero3 = True
    return found if found.layers or found.states or found.zero3 else None


def is_neox(root: Path) -> bool:
    """Return whether a folder is, or contains, a GPT-NeoX checkpoint that deepy's own search does not find."""
    return files_of(root) is not None or _named_by_latest(root) is not None


def neox_checkpoints(root: Path) -> list[Path]:
    """Return the GPT-NeoX checkpoints in a folder, or the folder itself, in the order of iterations."""
    found = [folder for folder in checkpoint_folder.checkpoints(root) if files_of(folder)]
    return found or [folder for files in (files_of(root), _named_by_latest(root)) if files and (folder := files.folder)]


def find(root: Path, iteration: int | None = None) -> Files | None:
    """Return the GPT-NeoX checkpoint that `load` and `iteration` select; None if there is none.

    Raises Problems if some of its files are missing.
    """
    found = _select(root, iteration)
    if found and (missing := list(found.missing())):
        rest = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        what = f"load ({found.folder}): the GPT-NeoX checkpoint is incomplete; missing: {', '.join(missing[:3])}{rest}"
        hint = "copy the missing files from where the checkpoint was written, or choose another checkpoint with "
        hint += "iteration: NUMBER"
        raise Problems(Problem(what, hint=hint, id="checkpoint-incomplete", about=("load", "iteration")))
    return found


def _select(root: Path, iteration: int | None) -> Files | None:
    if not os.path.isdir(root):  # Path.is_dir raises OSError if the name is too long
        return None
    if iteration is not None:
        names = (checkpoint_folder.tag(iteration), str(iteration))
        found = next((files for name in names if (files := files_of(root / name))), None)
        return found or (alone if (alone := files_of(root)) and alone.iteration == iteration else None)
    if newest := checkpoint_folder.newest(root):
        return _as_latest_says(root, files_of(newest))
    return files_of(root) or _named_by_latest(root)


def _named_by_latest(root: Path) -> Files | None:
    name = checkpoint_folder.latest(root)
    # Not a path: `latest` comes with the checkpoint and must not lead out of its folder.
    return files_of(root / name) if name and name == Path(name).name else None


def _as_latest_says(root: Path, found: Files | None) -> Files | None:
    """Return the checkpoint, or a different one that `latest` names; raise Problems if that one is missing."""
    name = checkpoint_folder.latest(root)
    if found is None or name is None or found.folder.name == name:
        return found
    if other := _named_by_latest(root):
        return other
    what = f"load ({root}): the file `latest` names {name!r}, but the folder contains no such checkpoint"
    hint = f"set iteration: {found.iteration} to load the newest checkpoint, or correct the name in {root / 'latest'}"
    raise Problems(Problem(what, hint=hint, id="checkpoint-latest-wrong", about=("load", "iteration")))
