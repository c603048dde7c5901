"""A model with Mamba layers learns the same on every layout, in every precision, and when it is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.layouts import BF16, FP16, PIPE, RECOMPUTE, TENSOR, TWO_STAGES
from tests.support.ranks import run_ranks
from tests.support.trials import Losses, Trial, assert_same_curve, curves, resume, staged

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]
STEPS = 5
MIXED = {"attention_config": ["mamba", "global"], "mamba_inner_size": 64, "norm": "rmsnorm"}
ONE = {
    "plain": Trial(MIXED),
    "recomputed": Trial(MIXED | RECOMPUTE),
    "selective": Trial(MIXED | {"checkpoint_activations": "selective"}),
    "pipeline": Trial(MIXED | PIPE | RECOMPUTE),
}
TWO = {
    "tp2": Trial(MIXED | TENSOR),
    "tp2, sequence parallel": Trial(MIXED | TENSOR | {"sequence_parallel": True}),
    "pp2": Trial(MIXED | TWO_STAGES),
    "ZeRO-1": staged(1, MIXED),
    "ZeRO-2": staged(2, MIXED),
    "ZeRO-3": staged(3, MIXED),
    "ZeRO-3, recomputed": staged(3, MIXED | RECOMPUTE),
}
HALF = {
    "bf16": Trial(MIXED, BF16),
    "bf16, ZeRO-2": staged(2, MIXED, **BF16),
    "fp16": Trial(MIXED, FP16),
}


@pytest.fixture(scope="module")
def losses() -> dict[str, Losses]:
    return curves({1: ONE | HALF, 2: TWO}, STEPS)


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_the_same_curve(losses: dict[str, Losses], name: str) -> None:
    assert_same_curve(losses[name], losses["plain"])


@pytest.mark.parametrize("name", HALF)
def test_half_precision_learns_nearly_the_same(losses: dict[str, Losses], name: str) -> None:
    assert losses[name].train == pytest.approx(losses["plain"].train, abs=0.03)
    assert losses["plain"].held_out < losses["plain"].train[0] - 0.03


def test_a_checkpoint_continues(tmp_path: Path) -> None:
    trials = {"plain": Trial(MIXED), "ZeRO-1, bf16": Trial(MIXED, BF16)}
    for whole, resumed in run_ranks(resume, 1, trials, str(tmp_path), timeout=250)[0].values():
        assert resumed == pytest.approx(whole, abs=1e-6)
