"""The learning rate at every iteration, and the parameters in which the curves of two runs differ."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from neoxargs.base.record import replace
from neoxargs.facts.lr_schedule import LearningRateCurve, differing

CURVE = LearningRateCurve(style="linear", lr=1e-3, min_lr=1e-5, warmup_iters=10.0, decay_iters=110)
RUN = {
    "lr_decay_style": "linear", "lr": 1e-3, "min_lr": 0.0, "warmup": 0.1, "lr_decay_iters": 100, "train_iters": 100,
    "lr_decay_fraction": None, "warmup_from_zero": True, "lr_wsd_decay_iters": None,
    "lr_wsd_decay_style": "exponential", "lr_schedule": None,
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


@pytest.mark.slow  # importing megatron-core takes ten seconds
@pytest.mark.filterwarnings("ignore")  # of packages that megatron-core can do without
@pytest.mark.parametrize(
    ("style", "wsd"),
    [
        ("inverse-square-root", "exponential"),
        *(("WSD", wsd) for wsd in ("exponential", "linear", "cosine", "minus_sqrt")),
    ],
)
@pytest.mark.parametrize("lengths", [(10, 110, 30), (1, 50, 49), (7, 40, 1)])
def test_the_styles_of_megatron_core_have_its_rates(style: str, wsd: str, lengths: tuple[int, int, int]) -> None:
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    warmup, decay, wsd_iters = lengths
    group: dict[str, float] = {}
    theirs = OptimizerParamScheduler(
        SimpleNamespace(param_groups=[group]), init_lr=0.0, max_lr=1e-3, min_lr=1e-5, lr_warmup_steps=warmup,
        lr_decay_steps=decay, lr_decay_style=style, start_wd=0.0, end_wd=0.0, wd_incr_steps=0, wd_incr_style="constant",
        wsd_decay_steps=wsd_iters, lr_wsd_decay_style=wsd,
    )  # fmt: skip
    curve = LearningRateCurve(style, 1e-3, 1e-5, warmup, decay, True, wsd_iters, wsd)
    for iteration in range(decay + 20):
        assert curve.rate(iteration) == pytest.approx(group["lr"], rel=1e-12), iteration
        theirs.step(1)


def test_the_first_iteration_may_have_the_rate_of_the_second() -> None:
    """As in GPT-NeoX since 19 May 2026."""
    curve = replace(CURVE, from_zero=False)
    assert [curve.rate(n) for n in (0, 1, 2, 10)] == pytest.approx([1e-4, 1e-4, 2e-4, 1e-3])
    assert replace(curve, warmup_iters=0.2).rate(0) == 1e-3  # GPT-NeoX exceeds lr here
    assert replace(curve, warmup_iters=0.0).rate(0) == 1e-3


def test_without_warmup_the_first_iteration_has_the_full_rate() -> None:
    assert replace(CURVE, warmup_iters=0.0).rate(0) == 1e-3


def test_warmup_may_take_a_fraction_of_an_iteration() -> None:
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
