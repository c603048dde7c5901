"""The weights and optimizer states of two checkpoints: which differ, and by how much.

The checkpoints can be deepy's or GPT-NeoX's, and can have different layouts. Tensors are compared by name, joined over
all ranks, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from neoxargs import checkpoint_folder
from neoxargs.problems import Problem, Problems
from neoxargs.record import Record, replace
from neoxargs.tools.diff.side import Side

if TYPE_CHECKING:
    from torch import Tensor

    from neoxargs.train.checkpoint.weights_by_name import Weights

#: Tensors shown at most in the text; JSON has all.
MAX_SHOWN = 20
#: Problems of a checkpoint that must not be compared.
DAMAGE = (
    "checkpoint-file-damaged", "checkpoint-file-renamed", "checkpoint-file-refused", "checkpoint-incomplete",
    "checkpoint-not-usable",
)  # fmt: skip


class TensorDifference(Record):
    """A weight, or a state of the optimizer, that differs."""

    weight: str
    state: str
    """Of the optimizer; empty for the weight itself."""
    largest: float
    """The largest absolute difference of two elements."""
    relative: float
    """The norm of the difference, divided by the larger norm."""
    note: str = ""
    """Why the tensors cannot be subtracted; the numbers are then 0."""


class WeightComparison(Record):
    """All tensors of two checkpoints."""

    common: list[tuple[str, str]]
    """Weight and state of the tensors that both sides have; the state of the weight itself is empty."""
    differences: list[TensorDifference]
    only: tuple[list[str], list[str]]
    """Tensors that only one side has."""

    @property
    def same(self) -> bool:
        return not self.differences and not any(self.only)

    def lines(self) -> Iterator[Sequence[str]]:
        """Yield the rows of the summary."""
        for noun, is_state in (("weights", False), ("optimizer states", True)):
            total = sum(bool(state) == is_state for _, state in self.common)
            count = sum(bool(each.state) == is_state for each in self.differences)
            if total:
                yield [f"{count} of {total} {noun} differ" if count else f"all {total} {noun} are equal"]
        for letter, names in zip("AB", self.only, strict=True):
            if names:
                rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
                yield [f"only in {letter}: {', '.join(names[:3])}{rest}"]

    def table(self) -> Iterator[Sequence[str]]:
        """Yield the rows of the tensors that differ most."""
        ranked = sorted(self.differences, key=lambda each: (each.state != "", -(inf if each.note else each.relative)))
        if ranked:
            yield "", "largest difference", "relative"
        for each in ranked[:MAX_SHOWN]:
            values = (each.note, "") if each.note else (f"{each.largest:.3g}", f"{each.relative:.3g}")
            yield _name(each.weight, each.state), *values
        if len(ranked) > MAX_SHOWN:
            yield f"and {len(ranked) - MAX_SHOWN} more", "", ""

    def to_json(self) -> dict[str, Any]:
        fields = ("weight", "state", "largest", "relative", "note")
        rows = [{name: getattr(each, name) for name in fields} for each in self.differences]
        return {
            "equal": len(self.common) - len(rows),
            "differences": rows,
            "only_in_a": self.only[0],
            "only_in_b": self.only[1],
        }


def compare(a: Side, b: Side) -> tuple[WeightComparison | None, list[Problem]]:
    """Compare the weights of two checkpoints; None, with a warning if both are, if that is impossible.

    Raises Problems if a checkpoint is damaged.
    """
    if a.checkpoint is None or b.checkpoint is None:
        return None, []
    try:
        return _compared(_opened(a), _opened(b)), []
    except ModuleNotFoundError:
        what, hint = "the weights were not compared, because torch is not installed", "install torch to compare them"
        return None, [Problem(what, hint=hint, severity="warning", id="weights-not-compared")]
    except Problems as stop:
        if any(problem.id in DAMAGE for problem in stop.problems):
            raise
        reasons = [replace(problem, severity="warning") for problem in stop.problems]
        return None, [Problem("the weights were not compared", severity="warning", id="weights-not-compared"), *reasons]


def _opened(side: Side) -> Weights:
    """Return the weights of a side's checkpoint; raises Problems if it is damaged, or does not list its weights."""
    from neoxargs.neox_checkpoint.contents import Contents
    from neoxargs.train.checkpoint import inventory
    from neoxargs.train.checkpoint.weights_by_name import SavedWeights
    from neoxargs.train.neox.weights import NeoxWeights

    folder = side.checkpoint
    assert folder is not None
    if contents := Contents.at(folder, None):
        return NeoxWeights(contents, side.config)
    if damage := checkpoint_folder.verify(folder):
        raise Problems(Problem(f"{folder}: {damage}", id="checkpoint-not-usable"))
    inventories = inventory.read(folder)
    if not inventories:
        raise Problems(Problem(f"{folder} does not list its weights", id="weights-not-compared"))
    return SavedWeights(folder, inventories)


def _compared(a: Weights, b: Weights) -> WeightComparison:
    in_a, in_b = _tensors(a), _tensors(b)
    common = [key for key in in_a if key in in_b]
    differences = [each for key in common if (each := _difference(*key, a, b))]
    only = ([_name(*key) for key in in_a if key not in in_b], [_name(*key) for key in in_b if key not in in_a])
    return WeightComparison(common, differences, only)


def _tensors(weights: Weights) -> list[tuple[str, str]]:
    """Return (weight, "") of every weight, and (weight, state) of every tensor of its optimizer state."""
    found = [(name, "") for name in weights.slices]
    if weights.complete:
        states = ((name, weights.states(name)) for name in weights.slices)
        found += [(name, state) for name, values in states for state, value in values.items() if value is None]
    return found


def _name(weight: str, state: str) -> str:
    return f"{weight} {state}".rstrip()


def _difference(weight: str, state: str, a: Weights, b: Weights) -> TensorDifference | None:
    """Return how a tensor differs; None if all elements are equal. Rows that pad the vocabulary are not compared."""
    from neoxargs.train.checkpoint.relayout import VOCABULARY_WEIGHTS

    # The optimizer's fp32 weights, which differ also where 16-bit weights are equal.
    master = a.complete and b.complete and not state
    try:
        x, y = (side.full_tensor(weight, state, master=master) for side in (a, b))
    except Problems as stop:
        if any(problem.id in DAMAGE for problem in stop.problems):
            raise
        return TensorDifference(weight, state, 0.0, 0.0, "cannot be joined over the ranks")
    if weight in VOCABULARY_WEIGHTS:
        rows = min(len(x), len(y))
        x, y = x[:rows], y[:rows]
    if x.shape != y.shape:
        return TensorDifference(weight, state, 0.0, 0.0, f"{_shape(x)} in A, {_shape(y)} in B")
    x, y = x.double(), y.double()
    if bool(((x == y) | (x.isnan() & y.isnan())).all()):
        return None
    norm = max(float(x.norm()), float(y.norm()))
    return TensorDifference(weight, state, float((x - y).abs().max()), float((x - y).norm()) / norm if norm else 0.0)


def _shape(x: Tensor) -> str:
    return " x ".join(map(str, x.shape))
