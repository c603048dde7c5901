"""The batch size of each step, which is a function of the samples that were consumed before it.

Without a ramp it is constant. With `rampup_batch_size: [start, increment, samples]` it rises as in Megatron-LM
(`megatron/core/num_microbatches_calculator.py`): by `increment` after equal numbers of samples, from `start` to
`train_batch_size`. `batch_size_schedule: [{until, size}, ...]` lists the sizes. Micro batch and data parallel size
stay, so that the number of micro batches of a step rises.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from neoxargs.facts import ramp_phases
from neoxargs.facts.mistakes import Mistakes

#: The parameter, and the names of its three numbers.
RAMP, PARTS = "rampup_batch_size", ("start", "increment", "samples")
#: The parameter that lists phases.
PHASES = "batch_size_schedule"


class Stage(NamedTuple):
    """Steps with the same batch size, up to those of the next stage."""

    iteration: int
    """Steps before the first of them."""
    samples: int
    """Samples before the first of them."""
    size: int
    """Samples of each."""


class BatchSizes(ramp_phases.Ramp):
    """The batch sizes of a run, and of its steps from a position on: from its beginning, or where it was resumed."""

    iteration: int = 0
    """Steps before the position."""
    samples: int = 0
    """Samples before the position."""

    @classmethod
    def of(cls, get: Callable[[str], Any]) -> BatchSizes:
        """Return the batch sizes of a run's parameters."""
        return cls.with_ramp(get("train_batch_size"), get(RAMP), get(PHASES), get("seq_length"))

    @classmethod
    def with_ramp(
        cls, size: int, ramp: Sequence[int] | None, phases: Sequence[Any] | None = None, tokens: int = 1
    ) -> BatchSizes:
        """Return the batch sizes up to `size`; those of an invalid ramp, or of invalid phases, are constant.

        tokens: of a sample.
        """
        if phases and not ramp:
            try:
                return cls(begins_of_phases(phases, tokens))
            except Mistakes:
                return cls([(0, size)])
        return cls(_begins(size, *ramp) if ramp and is_valid(ramp, size) else [(0, size)])

    def resumed(self, iteration: int, samples: int) -> BatchSizes:
        """Return the batch sizes of a run that goes on after so many steps and samples."""
        return BatchSizes(self.begins, iteration, samples)

    @property
    def first(self) -> int:
        """The size of the run's first batch."""
        return self.begins[0][1]

    @property
    def last(self) -> int:
        """The size of the batches after the ramp, which is `train_batch_size`."""
        return self.begins[-1][1]

    @cached_property
    def stages(self) -> list[Stage]:
        """The stages from the position on, one of each size that a step has."""
        return list(self._stages())

    def _stages(self) -> Iterator[Stage]:
        iteration, samples = self.iteration, self.samples
        for number, (_, size) in enumerate(self.begins, 1):
            end = self.begins[number][0] if number < len(self.begins) else None
            if end is not None and end <= samples:
                continue  # passed before the position, or within one step
            yield Stage(iteration, samples, size)
            if end is not None:
                steps = -(-(end - samples) // size)
                iteration, samples = iteration + steps, samples + steps * size

    def of_iteration(self, iteration: int) -> int:
        """Return the size of an iteration's batch, counted from 0."""
        return self._stage(iteration).size

    def samples_after(self, iterations: int) -> int:
        """Return the samples that so many iterations of the run consume; not before the position."""
        stage = self._stage(iterations)
        return stage.samples + (iterations - stage.iteration) * stage.size

    def iterations_in(self, samples: int) -> int:
        """Return the iterations that consume at most so many samples, as many as possible."""
        stages = self.stages
        stage = stages[max(0, bisect_right(stages, samples, key=lambda each: each.samples) - 1)]
        return stage.iteration + max(0, samples - stage.samples) // stage.size

    def _stage(self, iteration: int) -> Stage:
        stages = self.stages
        return stages[max(0, bisect_right(stages, iteration, key=lambda each: each.iteration) - 1)]

    def iterations_by_size(self, until: int) -> dict[int, int]:
        """Return batch size -> iterations from the position up to iteration `until`."""
        ends = [*(stage.iteration for stage in self.stages[1:]), until]
        counts = {stage.size: min(end, until) - stage.iteration for stage, end in zip(self.stages, ends, strict=True)}
        return {size: count for size, count in counts.items() if count > 0}


def is_valid(ramp: Sequence[Any], size: Any) -> bool:
    """Return whether a ramp has the form that Megatron-LM requires, and reaches the batch size in equal steps."""
    if len(ramp) != len(PARTS) or not all(isinstance(each, int) and each > 0 for each in (*ramp, size)):
        return False
    start, increment, _ = ramp
    return bool(start < size and (size - start) % increment == 0)


def _begins(size: int, start: int, increment: int, samples: int) -> list[tuple[int, int]]:
    count = (size - start) // increment
    each = samples / count

    def begin(number: int) -> int:
        """Return the least number of samples after which the batch has risen so often."""
        # Megatron-LM divides floating point numbers, so a begin can be off by one from the exact quotient.
        found = -(-number * samples // count)
        while found and int((found - 1) / each) >= number:
            found -= 1
        while int(found / each) < number:
            found += 1
        return min(found, samples + 1)  # where Megatron-LM ends the ramp in any case

    return [(begin(number), start + number * increment) for number in range(count + 1)]


def begins_of_phases(listed: Sequence[Any], tokens: int) -> ramp_phases.Begins:
    """Return the begins of `batch_size_schedule`. tokens: of a sample. Raises Mistakes."""
    return ramp_phases.begins(
        listed, "size", "samples", tokens, lambda iterations, found: BatchSizes(found).samples_after(iterations)
    )
