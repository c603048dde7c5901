"""Batch sizes along a run, beside megatron-core's own calculator."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from random import Random
from typing import Any

import pytest

from neoxargs.facts.batch_sizes import BatchSizes, Stage, begins_of_phases
from neoxargs.facts.lengths import Sizes
from neoxargs.facts.lr_phases import phases
from neoxargs.facts.mistakes import Mistakes


def calculator(size: int, ramp: list[int]) -> Any:
    """Return megatron-core's calculator for micro batches of one sample on one rank; imports only its module."""
    package = importlib.util.find_spec("megatron")
    assert package and package.submodule_search_locations
    [file] = (Path(each, "core", "num_microbatches_calculator.py") for each in package.submodule_search_locations)
    spec = importlib.util.spec_from_file_location("num_microbatches_calculator", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RampupBatchsizeNumMicroBatchesCalculator(size, 1, 1, False, 1, *ramp)


def ramps(number: int) -> list[tuple[int, list[int]]]:
    """Return final sizes with random ramps, also such that several increments fall into one step."""
    random, found = Random(0), []
    for _ in range(number):
        start, increment, samples = random.choice([1, 2, 8, 32]), random.choice([1, 2, 7, 16]), random.randint(1, 2000)
        found.append((start + increment * random.randint(1, 40), [start, increment, samples]))
    return found


@pytest.mark.parametrize(("size", "ramp"), ramps(60))
def test_a_batch_has_the_size_that_megatron_core_gives_it(size: int, ramp: list[int]) -> None:
    sizes, theirs = BatchSizes.with_ramp(size, ramp), calculator(size, ramp)
    for samples in range(ramp[-1] + 3):
        theirs.update(samples, False)
        assert sizes.after(samples) == theirs.get(), samples


@pytest.mark.parametrize(("size", "ramp"), ramps(60))
def test_the_closed_forms_are_those_of_a_loop(size: int, ramp: list[int]) -> None:
    sizes, samples = BatchSizes.with_ramp(size, ramp), 0
    counts: dict[int, int] = {}
    for iteration in range(300):
        batch = sizes.after(samples)
        assert (sizes.samples_after(iteration), sizes.of_iteration(iteration)) == (samples, batch)
        assert [sizes.iterations_in(each) for each in (samples, samples + batch - 1)] == [iteration, iteration]
        assert sizes.iterations_by_size(iteration) == counts
        counts[batch] = counts.get(batch, 0) + 1
        samples += batch


def test_a_resumed_run_goes_on_where_it_was() -> None:
    sizes = BatchSizes.with_ramp(8, [2, 2, 30])
    assert sizes.stages == [Stage(0, 0, 2), Stage(5, 10, 4), Stage(8, 22, 6), Stage(10, 34, 8)]
    # After 7 steps of another batch size.
    resumed = sizes.resumed(7, 21)
    assert resumed.stages == [Stage(7, 21, 6), Stage(9, 33, 8)]
    assert [resumed.samples_after(iteration) for iteration in (7, 8, 9, 10)] == [21, 27, 33, 41]


def test_a_constant_batch_has_one_stage() -> None:
    sizes = BatchSizes.with_ramp(8, None)
    assert not sizes.changes and sizes.stages == [Stage(0, 0, 8)]
    assert (sizes.samples_after(5), sizes.iterations_in(47), sizes.after(10**12)) == (40, 5, 8)


@pytest.mark.parametrize("ramp", [[2, 2], [2, 4, 30], [8, 2, 30], [16, 2, 30], [0, 2, 30]])
def test_an_invalid_ramp_is_none(ramp: list[int]) -> None:
    assert not BatchSizes.with_ramp(8, ramp).changes


@pytest.mark.parametrize(("until", "iterations"), [("24 samples", 8), ("34 samples", 10), ("340 tokens", 10), (9, 9)])
def test_phases_of_the_learning_rate_in_samples_count_the_samples_of_the_ramp(until: Any, iterations: int) -> None:
    sizes = Sizes(100, BatchSizes.with_ramp(8, [2, 2, 30]), 10)
    [phase, _] = phases([{"style": "constant", "until": until}, {"style": "constant"}], 1e-3, sizes)
    assert phase.until == iterations


def listed(number: int) -> list[tuple[int, list[dict[str, Any]]]]:
    """Return tokens of a sample and random phases, with ends in every unit."""
    random, found = Random(1), []
    for _ in range(number):
        size, end, tokens, each = random.randint(1, 9), 0, random.choice([1, 16, 2048]), []
        for _ in range(random.randint(1, 4)):
            end += random.randint(1, 60)
            until = random.choice([end, f"{end * 30} samples", f"{end * 30 * tokens + tokens // 2} tokens"])
            each.append({"until": until, "size": size})
            size += random.randint(1, 30)
        found.append((tokens, [*each, {"size": size}]))
    return found


def read(tokens: int, phases: list[dict[str, Any]], steps: int) -> list[int]:
    """Return the sizes of a run's batches: each phase goes on until the run has made so many steps or read so much."""
    samples, sizes, left = 0, list[int](), list(phases)

    def ended(until: Any) -> bool:
        number, _, unit = str(until).partition(" ")
        has = {"": len(sizes), "samples": samples, "tokens": samples}[unit]
        return has >= int(number) // (tokens if unit == "tokens" else 1)

    while len(sizes) < steps:
        while "until" in left[0] and ended(left[0]["until"]):
            left.pop(0)
        sizes.append(left[0]["size"])
        samples += sizes[-1]
    return sizes


def test_phases_are_those_of_a_loop() -> None:
    valid = 0
    for tokens, given in listed(60):
        try:
            sizes = BatchSizes(begins_of_phases(given, tokens))
        except Mistakes as error:
            assert "after the end" in str(error)  # iterations and samples of different phases cross
            continue
        valid, expected = valid + 1, read(tokens, given, 200)
        assert [sizes.of_iteration(each) for each in range(200)] == expected, given
        assert [sizes.samples_after(each) for each in range(200)] == [sum(expected[:each]) for each in range(200)]
    assert valid > 30


def test_tokens_are_rounded_down_to_samples_as_in_megatron_lm() -> None:
    """`0:4 1K:16` of --step-batch-size-schedule."""
    sizes = BatchSizes.with_ramp(16, None, [{"until": "1K tokens", "size": 4}, {"size": 16}], 16)
    assert sizes.begins == [(0, 4), (62, 16)] and [sizes.after(each) for each in (60, 61, 62)] == [4, 4, 16]


@pytest.mark.parametrize(
    ("phases", "count"),
    [
        ([{"until": 3, "size": 2}, 4, {"until": "x", "sise": 1}, {"size": 8}], 4),
        ([{"until": "30%", "size": 2}, {"size": 8}], 1),
        ([{"until": 3, "size": 2}, {"until": 9, "size": 8}], 1),
        ([{"size": 2}, {"size": True}], 2),
        ([{"until": 3, "size": 8}, {"size": 8}], 1),
        ([{"until": 3, "size": 2}, {"until": "6 samples", "size": 4}, {"size": 8}], 1),
    ],
)
def test_everything_that_is_wrong_is_found(phases: list[Any], count: int) -> None:
    with pytest.raises(Mistakes) as found:
        begins_of_phases(phases, 16)
    assert len(found.value.problems) == count
    assert not BatchSizes.with_ramp(8, None, phases, 16).changes
