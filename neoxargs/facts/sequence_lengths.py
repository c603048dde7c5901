"""The length of the sequences of each step, which is a function of the samples that were consumed before it.

Without `seq_length_schedule: [{until, length}, ...]` it is `seq_length`. In a phase with a shorter length, a sample of
`seq_length` tokens is cut into sequences of that length: attention, recurrent states and positions begin anew in each.
A step reads the same samples and has as many tokens as without phases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neoxargs.facts import ramp_phases
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.mistakes import Mistakes, refuse

#: The parameter that lists phases.
PHASES = "seq_length_schedule"


class SequenceLengths(ramp_phases.Ramp):
    """The lengths of a run's sequences."""

    @classmethod
    def of(cls, get: Callable[[str], Any]) -> SequenceLengths:
        """Return the lengths of a run's parameters; those of invalid phases are constant."""
        return cls.within(get, BatchSizes.of(get)) if get(PHASES) else cls([(0, get("seq_length"))])

    @classmethod
    def within(cls, get: Callable[[str], Any], sizes: BatchSizes) -> SequenceLengths:
        """Return the lengths of a run with these batch sizes."""
        if listed := get(PHASES):
            try:
                return cls(begins_of_phases(listed, get("seq_length"), sizes))
            except Mistakes:
                pass
        return cls([(0, get("seq_length"))])

    def shorter(self, samples: int) -> int | None:
        """Return the length of the step after so many samples; None if its sequences are whole samples."""
        length = self.after(samples)
        return length if length < self.begins[-1][1] else None

    def stages(self, sizes: BatchSizes, until: int) -> list[tuple[int, int]]:
        """Return the iterations before each length of the steps up to `until`, and that length.

        sizes: of the run, from its beginning or from where it was resumed.
        """
        found: list[tuple[int, int]] = []
        for samples, length in self.begins:
            first = sizes.iterations_in(samples)
            first += sizes.samples_after(first) < samples  # a phase begins with a step
            first = max(first, sizes.iteration)
            if found and found[-1][0] >= first:
                found.pop()
            if first < until:
                found.append((first, length))
        return found


def begins_of_phases(listed: Sequence[Any], seq_length: int, sizes: BatchSizes) -> ramp_phases.Begins:
    """Return the begins of `seq_length_schedule`. Raises Mistakes with everything that is wrong."""
    found = ramp_phases.begins(listed, "length", "tokens", seq_length, lambda count, _: sizes.samples_after(count))
    what = "length ({}) does not divide seq_length ({})"
    refuse(
        (f"phase {number}", what.format(length, seq_length), _nearest(length, seq_length))
        for number, (_, length) in enumerate(found, 1)
        if seq_length % length
    )
    if found[-1][1] != seq_length:
        what = f"length ({found[-1][1]}) must be seq_length ({seq_length})"
        raise Mistakes([(f"phase {len(found)}", what, f"end with a phase of length {seq_length}")])
    return found


def _nearest(length: int, seq_length: int) -> str:
    least = next((each for each in range(length, seq_length) if seq_length % each == 0), seq_length)
    most = next((each for each in range(min(length, seq_length), 0, -1) if seq_length % each == 0), 1)
    return f"set it to {most} or {least}" if most != least else f"set it to {least}"
