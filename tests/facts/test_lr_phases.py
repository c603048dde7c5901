"""`lr_schedule`: phases of the learning rate, equal to the schedules that they replace."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.base.record import replace
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.lengths import Sizes
from neoxargs.facts.lr_phases import phases, rate
from neoxargs.facts.lr_schedule import LearningRateCurve, differing
from neoxargs.facts.mistakes import Mistakes
from tests.support.configure import configure
from tests.support.snapshots import pinned

SIZES = Sizes(iterations=1000, batches=BatchSizes([(0, 8)]), tokens=100)
LR, LOW = 1e-3, 1e-5
WARM_UP = {"style": "linear", "until": 10, "from": 0, "to": LR}


def rates(listed: list[Any], iterations: int = 1000) -> list[float]:
    found = phases(listed, LR, SIZES._replace(iterations=iterations))
    return [rate(found, n) for n in range(iterations)]


@pytest.mark.parametrize("style", ["linear", "cosine", "exponential", "minus_sqrt"])
def test_wsd_is_three_phases(style: str) -> None:
    curve = LearningRateCurve("WSD", LR, LOW, 10, 100, True, 20, style)
    listed = [WARM_UP, {"style": "constant", "until": 80}, {"style": style, "until": 100, "to": LOW}]
    assert rates(listed, 120) == pytest.approx([curve.rate(n) for n in range(120)], rel=1e-12)


def test_a_warm_up_and_one_decay_are_the_usual_schedules() -> None:
    for curve, last in (
        (LearningRateCurve("cosine", LR, LOW, 10, 1000), {"style": "cosine", "to": LOW}),
        (LearningRateCurve("linear", LR, 0, 10, 1000), {"style": "linear", "to": 0}),
        (LearningRateCurve("constant", LR, 0, 10, 1000), {"style": "constant"}),
        (LearningRateCurve("inverse-square-root", LR, 0, 10, 1000), {"style": "inverse-square-root"}),
    ):
        assert rates([WARM_UP, last]) == pytest.approx([curve.rate(n) for n in range(1000)], rel=1e-12)


def test_a_schedule_may_warm_up_again_and_stays_at_its_last_rate() -> None:
    again = [
        WARM_UP,
        {"style": "cosine", "until": 100, "to": LOW},
        {**WARM_UP, "until": 110},
        {"style": "linear", "until": 200, "to": 0.0},
    ]
    found = rates(again)
    assert found[100] == pytest.approx(LOW) and found[110] == LR and found[105] == pytest.approx(LR / 2)
    assert set(found[200:]) == {0.0}


@pytest.mark.parametrize(
    ("until", "iterations"),
    [
        (20, 20), (5e2, 500), (0.3, 300), ("30%", 300), ("30 %", 300), (1.0, 1000), ("16K tokens", 20),
        ("0.016M Tokens", 20), ("160 samples", 20), ("20 iterations", 20), ("2k iteration", 2000), (1e-9, 1),
    ],
)  # fmt: skip
def test_ends_are_iterations_shares_tokens_or_samples(until: object, iterations: int) -> None:
    [first, _] = phases([{"style": "constant", "until": until}, {"style": "constant", "until": 5000}], LR, SIZES)
    assert first.until == iterations


@pytest.mark.parametrize(
    "until", [0, -1, 1.5, "120%", "0%", "x", "2 GB", "1.2.3K tokens", "20B", "2k", True, None, [1], "", "-5 samples"]
)
def test_other_ends_are_refused(until: object) -> None:
    with pytest.raises(Mistakes, match="until"):
        phases([{"style": "constant", "until": until}], LR, SIZES)


WRONG = [
    ["linear"], [{}], [{**WARM_UP, "unil": 3}], [{"style": "quadratic", "until": 3, "to": 1}],
    [WARM_UP, {"style": "linear", "until": 10, "to": 0}], [{"style": "linear", "until": 3}, WARM_UP],
    [{"style": "linear", "to": 0}, WARM_UP], [{"style": "constant", "to": 0}], [{"style": "inverse-square-root"}],
    [{**WARM_UP, "to": "high"}], [{**WARM_UP, "from": -1}], [{**WARM_UP, "from": True}],
]  # fmt: skip


BEYOND = [
    [WARM_UP, {"stile": "constnat"}, {"style": "cosin", "to": -1}],
    [{**WARM_UP, "until": 5000}, {"style": "constant"}],
]


def test_what_is_wrong_with_phases_is_said_at_once() -> None:
    said = []
    for listed in (*WRONG, *BEYOND):
        with pytest.raises(Mistakes) as stop:
            phases(listed, LR, SIZES)
        said += [f"{name}: {what}\n  = {hint}" for name, what, hint in stop.value.problems]
    pinned("\n".join(said))


def test_runs_with_other_phases_have_other_schedules() -> None:
    ours, theirs = (
        configure(f"lr_schedule: [{{style: linear, until: 10, from: 0, to: 0.001}}, {{style: cosine, to: {end}}}]")
        for end in (0.0, 0.0001)
    )
    assert differing(ours.get, theirs.get) == ["lr_schedule"]
    assert differing(ours.get, ours.get) == []
    curve = LearningRateCurve.of(ours.get)
    assert curve.style == "phases" and curve != LearningRateCurve.of(theirs.get)
    assert replace(curve, phases=curve.phases) == curve and curve.rate(10) == 0.001
