"""A resumed run takes its first step with its own rates and settings of the optimizer, not the checkpoint's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neoxargs.train.process import mesh, setup
from tests.support.layouts import BF16, FP16
from tests.support.ranks import run_ranks
from tests.support.trials import Training, Trial, allow_fp16, resume, staged

#: The layout that saves, and the one that loads.
PATHS = {
    "plain": (Trial(), Trial()),
    "ZeRO-1": (staged(1), staged(1)),
    "ZeRO-2": (staged(2), staged(2)),
    "ZeRO-3": (staged(3), staged(3)),
    "pipeline": (Trial({"pipe_parallel_size": 1}), Trial({"pipe_parallel_size": 1})),
    "pipeline, ZeRO-1": (staged(1, {"pipe_parallel_size": 1}), staged(1, {"pipe_parallel_size": 1})),
    "ZeRO-1, then plain": (staged(1), Trial()),
    "plain, then ZeRO-3": (Trial(), staged(3)),
    "bf16": (Trial({}, BF16), Trial({}, BF16)),
    "bf16, ZeRO-2": (staged(2, **BF16), staged(2, **BF16)),
    "fp16": (Trial({}, FP16), Trial({}, FP16)),
    **{f"fp16, ZeRO-{stage}": (staged(stage, **FP16), staged(stage, **FP16)) for stage in (1, 3)},
}
CHANGES: dict[str, Any] = {
    "lr": 4e-2, "optimizer.params.lr": 4e-2, "lr_decay_iters": 60, "override_lr_scheduler": True, "weight_decay": 0.3,
    "optimizer.params.betas": [0.5, 0.6], "optimizer.params.eps": 1e-5,
}  # fmt: skip


def resumed(folder: str) -> dict[str, tuple[float, list[dict[str, Any]], list[float]]]:
    """Return of each path the rate of the curve, the settings of the optimizer that has loaded, and two losses."""
    process, found = setup.start("nccl", seed=1), {}
    allow_fp16()
    for name, (saves, loads) in PATHS.items():
        first = Training(saves, save=f"{folder}/{name}")
        for _ in range(2):
            first.step()
        first.save(process, 2)
        mesh.destroy_groups()
        second = Training(loads, load=f"{folder}/{name}", **CHANGES)
        second.load(process)
        engine = second.engine.deepspeed
        names = ("lr", "weight_decay", "betas", "eps")
        groups = [{name: group[name] for name in names} for group in engine.optimizer.param_groups]
        rate = engine.lr_scheduler.curve.rate(2)
        found[name] = rate, groups, [second.step() for _ in range(2)]
        mesh.destroy_groups()
    return found


def test_the_first_step_has_the_settings_of_this_run(tmp_path: Path) -> None:
    found = run_ranks(resumed, 1, str(tmp_path))[0]
    losses = found["plain"][2]
    for name, (rate, groups, here) in found.items():
        assert rate > 0.039, name
        assert {group["weight_decay"] for group in groups} == {0.3, 0.0}, name
        for group in groups:
            assert (group["lr"], *group["betas"], group["eps"]) == (rate, 0.5, 0.6, 1e-5), name
        # The second loss is that after a step with these settings.
        assert here == pytest.approx(losses, rel=5e-3 if "16" in name else 2e-6), name


CYCLE = {"type": "OneCycle", "params": {"cycle_min_lr": 1e-3, "cycle_max_lr": 3e-3, "cycle_first_step_size": 4}}


def cycled(folder: str) -> dict[str, tuple[list[float], list[float]]]:
    """Return what `resume` does with a schedule of DeepSpeed's, which also sets betas."""
    scheduled = {"scheduler.type": CYCLE["type"], "scheduler.params": CYCLE["params"]}
    paths = {"plain": Trial(scheduled, {"scheduler": CYCLE}), "ZeRO-1": staged(1, scheduled, scheduler=CYCLE)}
    return resume(paths, folder)


def test_a_schedule_of_deepspeed_goes_on_with_its_betas(tmp_path: Path) -> None:
    for name, (whole, continued) in run_ranks(cycled, 1, str(tmp_path))[0].items():
        assert continued == whole, name
