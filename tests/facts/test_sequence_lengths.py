"""The lengths of sequences along a run, beside a loop over its steps."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.description import batch
from neoxargs.facts.mistakes import Mistakes
from neoxargs.facts.sequence_lengths import SequenceLengths, begins_of_phases
from tests.support.configure import configure
from tests.support.snapshots import pinned

RUN: dict[str, Any] = {
    "seq_length": 64, "train_batch_size": 8, "rampup_batch_size": [2, 2, 30],
    "seq_length_schedule": [
        {"until": 3, "length": 8}, {"until": "13 samples", "length": 16}, {"until": "1300 tokens", "length": 32},
        {"length": 64},
    ],
}  # fmt: skip


def loop(lengths: SequenceLengths, sizes: BatchSizes, first: int, last: int) -> list[int]:
    """Return the length of each step."""
    samples, found = sizes.samples_after(first), []
    for _ in range(first, last):
        found.append(lengths.after(samples))
        samples += sizes.after(samples)
    return found


def test_a_phase_begins_with_a_step() -> None:
    lengths, sizes = SequenceLengths.of(RUN.get), BatchSizes.of(RUN.get)
    # Batches of 2 samples, from sample 10 on of 4, from sample 22 on of 6.
    assert lengths.begins == [(0, 8), (6, 16), (13, 32), (20, 64)]
    assert loop(lengths, sizes, 0, 9) == [8, 8, 8, 16, 16, 16, 32, 32, 64]


@pytest.mark.parametrize("start", [0, 2, 3, 7, 20])
@pytest.mark.parametrize("until", [1, 4, 8, 30])
def test_the_stages_are_those_of_a_loop(start: int, until: int) -> None:
    lengths, sizes = SequenceLengths.of(RUN.get), BatchSizes.of(RUN.get)
    expected = loop(lengths, sizes, start, until)
    stages = lengths.stages(sizes.resumed(start, sizes.samples_after(start)), until)
    ends = [*(first for first, _ in stages[1:]), until]
    assert [length for (first, length), end in zip(stages, ends, strict=False) for _ in range(first, end)] == expected


@pytest.mark.parametrize(
    ("phases", "count"),
    [
        ([{"until": 3, "length": 7}, {"until": 9, "length": 24}, {"length": 64}], 2),
        ([{"until": 3, "length": 8}, {"length": 32}], 1),
        ([{"until": "10%", "size": 8}, {"length": 64}], 3),
    ],
)
def test_everything_that_is_wrong_is_found(phases: list[Any], count: int) -> None:
    sizes = BatchSizes([(0, 8)])
    with pytest.raises(Mistakes) as found:
        begins_of_phases(phases, 64, sizes)
    assert len(found.value.problems) == count
    assert not SequenceLengths.within({"seq_length_schedule": phases, "seq_length": 64}.get, sizes).changes


def test_the_description_names_the_shorter_lengths() -> None:
    phases = "seq_length: 32\nseq_length_schedule: [{until: 5, length: 8}, {until: 9, length: 16}, {length: 32}]"
    pinned([*batch(configure(phases))])
