"""The weight decay of an iteration is megatron-core's."""

from __future__ import annotations

import pytest

from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.weight_decay import WeightDecay
from tests.support.megatron_schedule import beside_megatron, megatron_schedule

ITERATIONS, BATCH = 37, 8


@beside_megatron
@pytest.mark.parametrize("style", ["linear", "cosine"])
@pytest.mark.parametrize(("start", "end"), [(0.0, 0.1), (0.033, 0.1)])
def test_it_is_that_of_megatron_core(style: str, start: float, end: float) -> None:
    ends = {"start_wd": start, "end_wd": end}
    scheduler = megatron_schedule({}, **ends, wd_incr_steps=ITERATIONS * BATCH, wd_incr_style=style)
    ours = WeightDecay(style, start, end, ITERATIONS, end)
    for iteration in range(ITERATIONS + 3):
        assert ours.after(iteration) == pytest.approx(scheduler.get_wd(), rel=1e-12, abs=1e-15)
        scheduler.step(BATCH)


@beside_megatron
def test_along_a_ramp_it_counts_samples() -> None:
    values = {
        "weight_decay_incr_style": "linear", "start_weight_decay": 0.0, "end_weight_decay": 0.1, "weight_decay": 0.1,
        "train_samples": 1000, "train_batch_size": 64, "rampup_batch_size": [16, 16, 300],
    }  # fmt: skip
    ours, sizes = WeightDecay.of(values.get), BatchSizes.of(values.get)
    theirs = megatron_schedule({}, end_wd=0.1, wd_incr_steps=1000, wd_incr_style="linear")
    for iteration in range(sizes.iterations_in(1000)):
        assert ours.after(iteration) == pytest.approx(theirs.get_wd(), rel=1e-12)
        theirs.step(sizes.of_iteration(iteration))
    assert ours.after(5) < WeightDecay("linear", 0.0, 0.1, sizes.iterations_in(1000), 0.1).after(5)


def test_without_a_style_it_is_constant() -> None:
    values = {"weight_decay_incr_style": "constant", "start_weight_decay": 0.3, "end_weight_decay": 0.5}
    found = WeightDecay.of((values | {"weight_decay": 0.1, "train_iters": 10}).get)
    assert not found.changes and found.after(5) == 0.1
