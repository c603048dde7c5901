"""A model with RWKV layers learns the same on every layout: replicas, stages, ZeRO's shards, recomputed layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import run_ranks
from tests.support.trials import Losses, Trial, resume, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 5
MODEL: dict[str, Any] = {
    "attention_config": ["rwkv", "global", "rwkv"], "num_layers": 3, "dim_att": 64, "head_size": 16, "ffn_dim": 96,
}  # fmt: skip
RESET = {"reset_attention_mask": True}
RECOMPUTED = {"checkpoint_activations": True}


def staged(stage: int, **changes: Any) -> Trial:
    return Trial(MODEL | changes | {"zero_optimization.stage": stage}, {"zero_optimization": {"stage": stage}})


ONE = {
    "plain": Trial(MODEL),
    "documents": Trial(MODEL | RESET),
    "plain, recomputed": Trial(MODEL | RECOMPUTED),
    "plain, recomputed selectively": Trial(MODEL | {"checkpoint_activations": "selective"}),
    "plain, one stage": Trial(MODEL | {"pipe_parallel_size": 1}),
}
TWO = {
    "plain, pp2": Trial(MODEL | {"pipe_parallel_size": 2}),
    "plain, pp2, recomputed": Trial(MODEL | RECOMPUTED | {"pipe_parallel_size": 2}),
    "documents, pp2": Trial(MODEL | RESET | {"pipe_parallel_size": 2}),
    "documents, dp2": Trial(MODEL | RESET),
    "plain, ZeRO-1": staged(1),
    "plain, ZeRO-2": staged(2),
    "plain, ZeRO-3": staged(3),
    "plain, ZeRO-3, recomputed": staged(3, **RECOMPUTED),
}
HALF = {
    "bf16": Trial(MODEL, {"bf16": {"enabled": True}}),
    "fp16": Trial(MODEL, {"fp16": {"enabled": True, "initial_scale_power": 8}}),
}


@pytest.fixture(scope="module")
def losses() -> dict[str, Losses]:
    """What rank 0 reports of every layout; all ranks must report the same."""
    found: dict[str, Losses] = {}
    for world, trials in ((1, ONE | HALF), (2, TWO)):
        ranks = run_ranks(train, world, trials, STEPS, timeout=550)
        assert all(rank == ranks[0] for rank in ranks)
        found |= ranks[0]
    return found


@pytest.mark.parametrize("name", [name for name in ONE | TWO if "," in name])
def test_the_same_curve(losses: dict[str, Losses], name: str) -> None:
    here, one = losses[name], losses[name.partition(",")[0]]
    assert here.train[0] == pytest.approx(one.train[0], abs=1e-5)
    assert here.train == pytest.approx(one.train, abs=1e-3)
    assert here.norms == pytest.approx(one.norms, rel=2e-3)
    assert here.held_out == pytest.approx(one.held_out, abs=1e-3)


def test_it_learns_and_documents_are_apart(losses: dict[str, Losses]) -> None:
    assert losses["plain"].held_out < losses["plain"].train[0] - 0.03
    assert abs(losses["documents"].train[0] - losses["plain"].train[0]) > 1e-4


@pytest.mark.parametrize("name", HALF)
def test_half_precision_learns_nearly_the_same(losses: dict[str, Losses], name: str) -> None:
    assert losses[name].train == pytest.approx(losses["plain"].train, abs=2e-2)


def test_a_checkpoint_continues(tmp_path: Path) -> None:
    trials = {"pp2": TWO["plain, pp2"], "zero1": staged(1)}
    for uninterrupted, resumed in run_ranks(resume, 2, trials, str(tmp_path), timeout=300)[0].values():
        assert resumed == uninterrupted
