"""The learning rate at every iteration, and the parameters in which the curves of two runs differ."""

from __future__ import annotations

import math
from typing import Any

import pytest

from neoxargs.base.record import replace
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.lr_schedule import LearningRateCurve, counts_samples, differing
from tests.support.megatron_schedule import beside_megatron, megatron_schedule

CURVE = LearningRateCurve(style="linear", lr=1e-3, min_lr=1e-5, warmup_iters=10.0, decay_iters=110)
RUN = {
    "lr_decay_style": "linear", "lr": 1e-3, "min_lr": 0.0, "warmup": 0.1, "lr_decay_iters": 100, "train_iters": 100,
    "lr_decay_fraction": None, "warmup_from_zero": True, "lr_wsd_decay_iters": None,
    "lr_wsd_decay_style": "exponential", "lr_schedule": None,
    "train_samples": None, "lr_decay_samples": None, "train_batch_size": 8, "rampup_batch_size": None,
}  # fmt: skip


@pytest.mark.parametrize("style", ["constant", "linear", "cosine", "exponential"])
def test_warmup_is_linear_from_zero(style: str) -> None:
    curve = replace(CURVE, style=style)
    assert [curve.rate(n) for n in (0, 5, 10)] == [0.0, 5e-4, 1e-3]


@pytest.mark.parametrize(
    ("style", "halfway", "end", "beyond"),
    [
        ("constant", 1e-3, 1e-3, 1e-3),
        ("linear", 5e-4, 1e-5, 1e-5),
        ("cosine", (1e-3 + 1e-5) / 2, 1e-5, 1e-5),
        ("exponential", 1e-3 * math.exp(-0.693 / 2), 1e-3 * math.exp(-0.693), 1e-3 * math.exp(-0.693 * 1.5)),
    ],
)
def test_decay(style: str, halfway: float, end: float, beyond: float) -> None:
    curve = replace(CURVE, style=style)
    assert [curve.rate(n) for n in (60, 110, 160)] == pytest.approx([halfway, end, beyond])


@beside_megatron
@pytest.mark.parametrize(
    ("style", "wsd"),
    [
        ("inverse-square-root", "exponential"),
        *(("WSD", wsd) for wsd in ("exponential", "linear", "cosine", "minus_sqrt")),
    ],
)
@pytest.mark.parametrize("lengths", [(10, 110, 30), (1, 50, 49), (7, 40, 1)])
def test_the_styles_of_megatron_core_have_its_rates(style: str, wsd: str, lengths: tuple[int, int, int]) -> None:
    warmup, decay, wsd_iters = lengths
    group: dict[str, float] = {}
    theirs = megatron_schedule(
        group, min_lr=1e-5, lr_warmup_steps=warmup, lr_decay_steps=decay, lr_decay_style=style,
        wsd_decay_steps=wsd_iters, lr_wsd_decay_style=wsd,
    )  # fmt: skip
    curve = LearningRateCurve(style, 1e-3, 1e-5, warmup, decay, True, wsd_iters, wsd)
    for iteration in range(decay + 20):
        assert curve.rate(iteration) == pytest.approx(group["lr"], rel=1e-12), iteration
        theirs.step(1)


@beside_megatron
@pytest.mark.parametrize("style", ["linear", "cosine", "inverse-square-root", "WSD"])
@pytest.mark.parametrize("decay", [None, 700])
def test_a_schedule_in_samples_has_the_rates_of_megatron_core_along_a_ramp(style: str, decay: int | None) -> None:
    from megatron.core.num_microbatches_calculator import RampupBatchsizeNumMicroBatchesCalculator

    least = 0.0 if style == "linear" else 1e-5  # GPT-NeoX's linear decay ends at min_lr earlier
    run = {
        **RUN, "train_samples": 1000, "lr_decay_samples": decay, "train_batch_size": 32, "lr_decay_style": style,
        "rampup_batch_size": [4, 4, 300], "warmup": 0.21, "min_lr": least, "lr_wsd_decay_iters": 5,
        "lr_wsd_decay_style": "linear",
    }  # fmt: skip
    run["train_iters"] = run["lr_decay_iters"] = BatchSizes.of(run.get).iterations_in(1000)
    until, group, samples = decay or 1000, dict[str, float](), 0
    sizes = RampupBatchsizeNumMicroBatchesCalculator(32, 1, 1, False, 1, 4, 4, 300)
    theirs = megatron_schedule(
        group, min_lr=least, lr_warmup_steps=0.21 * until, lr_decay_steps=until, lr_decay_style=style,
        wsd_decay_steps=5 * 32, lr_wsd_decay_style="linear",
    )  # fmt: skip
    curve = LearningRateCurve.of(run.get)
    for iteration in range(run["train_iters"]):
        assert curve.rate(iteration) == pytest.approx(group["lr"], rel=1e-12), iteration
        sizes.update(samples, False)
        samples += sizes.get()
        theirs.step(sizes.get())


def test_the_count_of_a_schedule_is_part_of_it() -> None:
    ramp = {**RUN, "rampup_batch_size": [4, 4, 300], "train_batch_size": 32, "warmup_from_zero": False}
    counted = {**ramp, "train_samples": 3000}
    assert not counts_samples(ramp.get) and counts_samples(counted.get)
    assert differing(counted.get, ramp.get) == ["train_samples"]
    assert differing(counted.get, {**counted, "rampup_batch_size": [8, 8, 300]}.get) == ["rampup_batch_size"]
    assert differing(ramp.get, {**ramp, "rampup_batch_size": [8, 8, 300]}.get) == []
    first, second = (LearningRateCurve.of(counted.get).rate(iteration) for iteration in (0, 1))
    assert first == second > 0


def test_the_first_iteration_may_have_the_rate_of_the_second() -> None:
    """As in GPT-NeoX since 19 May 2026."""
    curve = replace(CURVE, from_zero=False)
    assert [curve.rate(n) for n in (0, 1, 2, 10)] == pytest.approx([1e-4, 1e-4, 2e-4, 1e-3])
    assert replace(curve, warmup_iters=0.2).rate(0) == 1e-3  # GPT-NeoX exceeds lr here
    assert replace(curve, warmup_iters=0.0).rate(0) == 1e-3


def test_warmup_may_take_no_iteration_or_a_fraction_of_one() -> None:
    assert replace(CURVE, warmup_iters=0.0).rate(0) == 1e-3
    assert replace(CURVE, warmup_iters=2.5).rate(2) == pytest.approx(1e-3 * 2 / 2.5)


def test_a_curve_from_parameters() -> None:
    assert LearningRateCurve.of(RUN.__getitem__) == LearningRateCurve("linear", 1e-3, 0.0, 10.0, 100)
    changed = LearningRateCurve.of({**RUN, "warmup_from_zero": False}.__getitem__)
    assert changed == LearningRateCurve("linear", 1e-3, 0.0, 10.0, 100, from_zero=False)


LONGER = {"train_iters": 200, "lr_decay_iters": 200}


@pytest.mark.parametrize(
    ("theirs", "ours", "names"),
    [
        ({}, {}, []),
        ({}, LONGER, []),
        ({}, {"train_iters": 200}, []),
        ({}, {"train_iters": 200, "lr_decay_iters": 150}, ["lr_decay_iters"]),
        ({"lr_decay_iters": 50}, LONGER, ["lr_decay_iters"]),
        ({}, {**LONGER, "warmup": 0.2, "lr": 2e-3}, ["lr", "warmup"]),
        (
            {"lr_decay_fraction": 0.5, "lr_decay_iters": 50},
            {**LONGER, "lr_decay_fraction": 0.5, "lr_decay_iters": 100},
            [],
        ),
        ({}, {**LONGER, "lr_decay_fraction": 0.5, "lr_decay_iters": 100}, []),
        ({}, {**LONGER, "lr_decay_fraction": 0.9, "lr_decay_iters": 180}, ["lr_decay_iters"]),
    ],
)
def test_what_makes_two_schedules_differ(theirs: dict[str, Any], ours: dict[str, Any], names: list[str]) -> None:
    assert differing({**RUN, **ours}.__getitem__, {**RUN, **theirs}.__getitem__) == names
