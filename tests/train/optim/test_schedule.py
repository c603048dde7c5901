"""The schedule of the learning rate, and checkpoints that were written with another schedule."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neoxargs.base.problems import Problems, render
from neoxargs.base.record import replace
from neoxargs.facts.lr_schedule import LearningRateCurve
from neoxargs.train.optim.schedule import Schedule, build_schedule, continue_schedule
from tests.support.configure import configure
from tests.support.refused import ids, refused
from tests.support.small_gpt import small
from tests.support.snapshots import pinned

CURVE = LearningRateCurve(style="linear", lr=1e-3, min_lr=1e-5, warmup_iters=10.0, decay_iters=110)


def optimizer() -> Any:
    return SimpleNamespace(param_groups=[{"lr": 0.0}, {"lr": 0.0, "width_mult": 4}])


def test_steps_set_the_rate_of_every_group_divided_by_its_width() -> None:
    groups = optimizer()
    schedule = Schedule(groups, CURVE)
    for _ in range(5):
        schedule.step()
    assert schedule.get_lr() == [5e-4, 1.25e-4]


PHASES = [["linear", 10, 0.0, 1e-3], ["constant", 40, 1e-3, 1e-3], ["cosine", 110, 1e-3, 1e-5]]


@pytest.mark.parametrize("curve", [CURVE, replace(CURVE, style="phases", phases=PHASES)], ids=["decay", "phases"])
def test_state_continues_the_curve(curve: LearningRateCurve) -> None:
    first = Schedule(optimizer(), curve)
    for _ in range(42):
        first.step()
    second = Schedule(optimizer(), curve)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.get_lr() == first.get_lr() != Schedule(optimizer(), CURVE).get_lr()
    for other in (CURVE, replace(curve, lr=1.0), replace(curve, phases=PHASES[:2])):
        if other != curve:
            assert ids(refused(Schedule(optimizer(), other).load_state_dict, first.state_dict()))


def test_a_checkpoint_with_another_curve_is_a_problem_that_names_every_difference() -> None:
    saved = Schedule(optimizer(), replace(CURVE, lr=2e-3, style="cosine")).state_dict()
    problems = refused(lambda: Schedule(optimizer(), CURVE).load_state_dict(saved))
    pinned(render(problems), "[checkpoint-other-lr-schedule]")
    assert "style is linear in this run and cosine in the checkpoint" in render(problems)
    assert "override_lr_scheduler" in render(problems)


@pytest.mark.shows("override-lr-scheduler", "use-checkpoint-lr-scheduler")
@pytest.mark.parametrize(("switch", "lr"), [("override_lr_scheduler", 1e-3), ("use_checkpoint_lr_scheduler", 2e-3)])
def test_a_switch_selects_the_schedule_of_a_resumed_run(switch: str, lr: float) -> None:
    saved = Schedule(optimizer(), replace(CURVE, lr=2e-3)).state_dict() | {"iteration": 10}
    ours = {"lr": 1e-3, "min_lr": 1e-5, "warmup": 10 / 110, "lr_decay_iters": 110}
    resumed = build_schedule(small(**ours, **{switch: True}), optimizer())
    resumed.load_state_dict(saved)
    assert (resumed.iteration, resumed.get_lr()[0]) == (10, lr)
    with pytest.raises(Problems):
        build_schedule(small(**ours), optimizer()).load_state_dict(saved)


def test_the_dialect_decides_whether_the_first_update_changes_weights() -> None:
    text = "lr: 0.001\nwarmup: 0.1\ntrain_iters: 100\n"
    for dialect, rate in (("2026-05-18", 0.0), ("2026-05-19", 1e-4)):
        config = configure(f"{text}dialect: '{dialect}'\n")
        assert build_schedule(config, optimizer()).get_lr()[0] == pytest.approx(rate)


def test_a_checkpoint_may_differ_in_the_first_rate_or_not_know_it() -> None:
    state = Schedule(optimizer(), CURVE).state_dict() | {"iteration": 10}
    del state["from_zero"]
    for saved in (state, state | {"from_zero": True}):
        schedule = Schedule(optimizer(), replace(CURVE, from_zero=False))
        schedule.load_state_dict(saved)
        assert schedule.get_lr()[0] == 1e-3


def test_schedules_of_deepspeed_continue_with_a_new_optimizer() -> None:
    from deepspeed.runtime.lr_schedules import WarmupLR

    def built() -> Any:
        new = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        return WarmupLR(new, warmup_num_steps=10, warmup_type="linear")

    first, second = built(), built()
    for _ in range(5):
        first.step()
    continue_schedule(second, {"iteration": 5, "lr_scheduler": first.state_dict()})
    assert second.optimizer.param_groups[0]["lr"] == first.optimizer.param_groups[0]["lr"] > 0


def test_a_decay_with_equal_ends_replaces_that_of_the_optimizer() -> None:
    """Only of the weights that decay: biases and norms have none, and muP multiplies that of some."""
    groups = SimpleNamespace(param_groups=[{"lr": 0.0, "weight_decay": decay} for decay in (0.1, 0.0, 0.4)])
    rate = {"lr": 1e-3, "min_lr": 1e-5, "warmup": 0.1, "lr_decay_iters": 10, "train_iters": 10}
    ends = {"weight_decay_incr_style": "linear", "start_weight_decay": 0.05, "end_weight_decay": 0.05}
    build_schedule(small(**rate, **ends, weight_decay=0.1), groups)
    assert [group["weight_decay"] for group in groups.param_groups] == pytest.approx([0.05, 0.0, 0.2])
