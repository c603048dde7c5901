"""Phases of a size that grows along a run: a list of `{until, size}`, as samples after which it has each size.

A phase ends with the step in which the run has made `until` steps, or has read `until` samples or tokens, since its
beginning; tokens are rounded down to samples, as in Megatron-LM's `--step-batch-size-schedule`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from neoxargs.base.record import Record
from neoxargs.facts.length_units import length
from neoxargs.facts.mistakes import Mistakes, refuse_each, wrong_keys

Begins = list[tuple[int, int]]
#: How a phase may end. A share of the run is none: a run that is made longer would have had other sizes before.
ENDS = "write iterations (2000), or a number with a unit (20B tokens, 5M samples)"


class Ramp(Record):
    """A size along a run: of its batches, or of their sequences."""

    begins: Sequence[tuple[int, int]]
    """Number of consumed samples from which on a step has a size, and that size; the first begins at 0."""

    @property
    def changes(self) -> bool:
        return len(self.begins) > 1

    def after(self, samples: int) -> int:
        """Return the size of the step that follows after so many samples."""
        return self.begins[bisect_right(self.begins, samples, key=lambda each: each[0]) - 1][1]


def begins(
    listed: Sequence[Any], key: str, unit: str, tokens: int, samples_after: Callable[[int, Begins], int]
) -> Begins:
    """Return the number of samples after which each phase begins, and its size. Raises Mistakes with all that is wrong.

    key: of the size, which counts `unit`. tokens: of a sample. samples_after: returns the samples of so many iterations
    of a run with these phases.
    """
    refuse_each(listed, lambda given, number: _wrong(given, number == len(listed), key, unit))
    found: Begins = []
    end = 0
    for number, given in enumerate(listed, 1):
        if found and given[key] <= (before := found[-1][1]):
            what = f"{key} ({given[key]}) must be larger than that of the phase before it ({before})"
            raise Mistakes([(f"phase {number}", what, "list the phases from the smallest to the largest")])
        found.append((end, given[key]))
        until = length(given["until"]) if "until" in given else None
        if until is None:
            continue
        if until.unit == "iteration":
            end = samples_after(int(until.number), found)
        else:
            end = int(until.number / (tokens if until.unit == "token" else 1) + 1e-9)
        if end <= found[-1][0]:
            what = f"until ({end:,} samples) must be after the end of the phase before it ({found[-1][0]:,})"
            raise Mistakes([(f"phase {number}", what, "put the phases in the order of their ends")])
    return found


def _wrong(given: Any, is_last: bool, key: str, unit: str) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a phase by itself, and what to write instead."""
    keys = ("until", key)
    yield from wrong_keys(given, keys, "phase", f"{{until: 20B tokens, {key}: 512}}")
    if not isinstance(given, Mapping):
        return
    size = given.get(key)
    if size is None:
        yield f"{key} is missing", f"write the number of {unit}"
    elif isinstance(size, bool) or not isinstance(size, int) or size < 1:
        yield f"{key} ({size!r}) is no number of {unit}", "write a whole number of at least 1"
    if "until" not in given and not is_last:
        yield "until is missing", "only the last phase goes on to the end of the run"
    if "until" in given and is_last:
        yield "until is set, but the last phase goes on to the end of the run", "remove until"
    elif "until" in given:
        found = length(given["until"])
        if found is None or found.unit == "share":
            yield f"until ({given['until']!r}) is no number of iterations, samples or tokens", ENDS
