"""The tensors of two checkpoints, of deepy or GPT-NeoX and of any layout: which differ, and by how much.

Tensors are compared by name, joined over all ranks, one at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.train.checkpoint import inventory
from neoxargs.train.checkpoint.neox.weights import NeoxWeights
from neoxargs.train.checkpoint.relayout import VOCABULARY_WEIGHTS
from neoxargs.train.checkpoint.weights_by_name import CheckpointWeights, SavedWeights

#: Weight and state of a tensor; the state of the weight itself is empty.
Key = tuple[str, str]


class Difference(NamedTuple):
    """A tensor that differs: see TensorDifference of `deepy diff`."""

    weight: str
    state: str
    largest: float
    relative: float
    note: str = ""


def compare(
    a: tuple[Path, Config], b: tuple[Path, Config]
) -> tuple[list[Key], list[Difference], tuple[list[str], list[str]]]:
    """Return the tensors that both checkpoints have, those that differ, and those that only one has.

    a, b: the folder of a checkpoint, and the configuration of its run. Raises Problems.
    """
    one, other = _opened(*a), _opened(*b)
    in_a, in_b = _tensors(one), _tensors(other)
    common = [key for key in in_a if key in set(in_b)]
    only = [
        [" ".join(key).rstrip() for key in mine if key not in set(theirs)]
        for mine, theirs in ((in_a, in_b), (in_b, in_a))
    ]
    return common, [each for key in common if (each := _difference(*key, one, other))], (only[0], only[1])


def _opened(folder: Path, config: Config) -> CheckpointWeights:
    """Return a checkpoint's weights; raises Problems if it is damaged, or does not list its weights."""
    if contents := Contents.at(folder, None):
        return NeoxWeights(contents, config)
    if damage := checkpoint_folder.verify(folder):
        raise Problems(Problem(f"{folder}: {damage}", id="checkpoint-not-usable"))
    inventories = inventory.read(folder)
    if not inventories:
        raise Problems(Problem(f"{folder} does not list its weights", id="weights-not-compared"))
    return SavedWeights(folder, inventories)


def _tensors(weights: CheckpointWeights) -> list[Key]:
    """Return every weight, and every tensor of its optimizer state."""
    found = [(name, "") for name in weights.slices]
    if weights.complete:
        states = ((name, weights.states(name)) for name in weights.slices)
        found += [(name, state) for name, values in states for state, value in values.items() if value is None]
    return found


def _difference(weight: str, state: str, a: CheckpointWeights, b: CheckpointWeights) -> Difference | None:
    """Return how a tensor differs; None if all elements are equal. Rows that pad the vocabulary are not compared."""
    # The optimizer's fp32 weights, which differ also where 16-bit weights are equal.
    master = a.complete and b.complete and not state
    try:
        x, y = (side.full_tensor(weight, state, master=master) for side in (a, b))
    except Problems as stop:
        if any(problem.id != "checkpoint-state-not-divisible" for problem in stop.problems):
            raise
        return Difference(weight, state, 0.0, 0.0, "cannot be joined over the ranks")
    if weight in VOCABULARY_WEIGHTS:
        rows = min(len(x), len(y))
        x, y = x[:rows], y[:rows]
    if x.shape != y.shape:
        shapes = (" x ".join(map(str, each.shape)) for each in (x, y))
        return Difference(weight, state, 0.0, 0.0, "{} in A, {} in B".format(*shapes))
    x, y = x.double(), y.double()
    if bool(((x == y) | (x.isnan() & y.isnan())).all()):
        return None
    norm = max(float(x.norm()), float(y.norm()))
    return Difference(weight, state, float((x - y).abs().max()), float((x - y).norm()) / norm if norm else 0.0)
