"""A model with Mamba layers learns the same on every layout, in every precision, and when it is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ranks import run_ranks
from tests.support.trials import Losses, Trial, resume, train

STEPS = 5
MIXED = {"attention_config": ["mamba", "global"], "mamba_inner_size": 64, "norm": "rmsnorm"}
TENSOR, TWO_STAGES = {"model_parallel_size": 2}, {"pipe_parallel_size": 2}
RECOMPUTED, SELECTIVE = {"checkpoint_activations": True}, {"checkpoint_activations": "selective"}
BF16 = {"bf16": {"enabled": True}}


def staged(stage: int, **changes: object) -> Trial:
    return Trial(MIXED | {"zero_optimization.stage": stage} | changes, {"zero_optimization": {"stage": stage}})


ONE = {
    "plain": Trial(MIXED),
    "recomputed": Trial(MIXED | RECOMPUTED),
    "selective": Trial(MIXED | SELECTIVE),
    "pipeline": Trial(MIXED | {"pipe_parallel_size": 1} | RECOMPUTED),
}
TWO = {
    "tp2": Trial(MIXED | TENSOR),
    "tp2, sequence parallel": Trial(MIXED | TENSOR | {"sequence_parallel": True}),
    "pp2": Trial(MIXED | TWO_STAGES),
    "ZeRO-1": staged(1),
    "ZeRO-2": staged(2),
    "ZeRO-3": staged(3),
    "ZeRO-3, recomputed": staged(3, checkpoint_activations=True),
}
HALF = {
    "bf16": Trial(MIXED, BF16),
    "bf16, ZeRO-2": Trial(MIXED | {"zero_optimization.stage": 2}, BF16 | {"zero_optimization": {"stage": 2}}),
    "fp16": Trial(MIXED, {"fp16": {"enabled": True, "initial_scale_power": 8}}),
}


@pytest.fixture(scope="module")
def losses() -> dict[str, Losses]:
    """What rank 0 reports of every layout; all ranks must report the same."""
    found: dict[str, Losses] = {}
    for world, trials in ((1, ONE | HALF), (2, TWO)):
        ranks = run_ranks(train, world, trials, STEPS, timeout=400)
        assert all(rank == ranks[0] for rank in ranks)
        found |= ranks[0]
    return found


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_the_same_curve(losses: dict[str, Losses], name: str) -> None:
    here, one = losses[name], losses["plain"]
    assert here.train == pytest.approx(one.train, abs=1e-3)
    assert here.norms == pytest.approx(one.norms, rel=2e-3)
    assert here.held_out == pytest.approx(one.held_out, abs=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("name", HALF)
def test_half_precision_learns_nearly_the_same(losses: dict[str, Losses], name: str) -> None:
    assert losses[name].train == pytest.approx(losses["plain"].train, abs=0.03)
    assert losses["plain"].held_out < losses["plain"].train[0] - 0.03


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_checkpoint_continues(tmp_path: Path) -> None:
    trials = {"plain": Trial(MIXED), "ZeRO-1, bf16": Trial(MIXED, BF16)}
    for whole, resumed in run_ranks(resume, 1, trials, str(tmp_path), timeout=250)[0].values():
        assert resumed == pytest.approx(whole, abs=1e-6)
