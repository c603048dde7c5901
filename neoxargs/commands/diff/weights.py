"""The weights and optimizer states of two checkpoints: which differ, and by how much.

The checkpoints can be deepy's or GPT-NeoX's, and can have different layouts. Tensors are compared by name, joined over
all ranks, one at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.record import Record, as_dict, replace
from neoxargs.commands.diff.differences import first_names
from neoxargs.commands.diff.side import Side

#: Tensors shown at most in the text; JSON has all.
MAX_SHOWN = 20
#: Problems of a checkpoint that must not be compared.
DAMAGE = (
    "checkpoint-file-damaged", "checkpoint-file-renamed", "checkpoint-file-refused", "checkpoint-incomplete",
    "checkpoint-format-newer", "checkpoint-not-usable",
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
                yield [f"only in {letter}: {first_names(names, 3)}"]

    def table(self) -> Iterator[Sequence[str]]:
        """Yield the rows of the tensors that differ most."""
        ranked = sorted(self.differences, key=lambda each: (each.state != "", -(inf if each.note else each.relative)))
        if ranked:
            yield "", "largest difference", "relative"
        for each in ranked[:MAX_SHOWN]:
            values = (each.note, "") if each.note else (f"{each.largest:.3g}", f"{each.relative:.3g}")
            yield f"{each.weight} {each.state}".rstrip(), *values
        if len(ranked) > MAX_SHOWN:
            yield f"and {len(ranked) - MAX_SHOWN} more", "", ""

    def to_json(self) -> dict[str, Any]:
        return {
            "equal": len(self.common) - len(self.differences),
            "differences": [as_dict(each) for each in self.differences],
            "only_in_a": self.only[0],
            "only_in_b": self.only[1],
        }


def compare(a: Side, b: Side) -> tuple[WeightComparison | None, list[Problem]]:
    """Compare the weights of two checkpoints; None, with a warning if both are, if that is impossible.

    Raises Problems if a checkpoint is damaged.
    """
    if a.checkpoint is None or b.checkpoint is None:
        return None, []
    os.environ["DS_ACCELERATOR"] = "cpu"  # otherwise DeepSpeed warns if it finds no accelerator
    try:
        # Imported here, because reading tensors needs torch, and most comparisons do not.
        from neoxargs.train.checkpoint import differences as reader

        common, found, only = reader.compare((a.checkpoint, a.config), (b.checkpoint, b.config))
        return WeightComparison(common, [TensorDifference(*each) for each in found], only), []
    except ModuleNotFoundError:
        what, hint = "the weights were not compared, because torch is not installed", "install torch to compare them"
        return None, [Problem(what, hint=hint, severity="warning", id="weights-not-compared")]
    except Problems as stop:
        if any(problem.id in DAMAGE for problem in stop.problems):
            raise
        reasons = [replace(problem, severity="warning") for problem in stop.problems]
        return None, [Problem("the weights were not compared", severity="warning", id="weights-not-compared"), *reasons]
