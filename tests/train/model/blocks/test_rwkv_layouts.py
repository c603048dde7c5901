"""A model with RWKV layers learns the same on every layout: replicas, stages, ZeRO's shards, recomputed layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.layouts import BF16, FP16, PIPE, RECOMPUTE, TWO_STAGES
from tests.support.ranks import run_ranks
from tests.support.trials import Losses, Trial, assert_same_curve, curves, resume, staged

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 5
MODEL: dict[str, Any] = {
    "attention_config": ["rwkv", "global", "rwkv"], "num_layers": 3, "dim_att": 64, "head_size": 16, "ffn_dim": 96,
}  # fmt: skip
RESET = {"reset_attention_mask": True}
ONE = {
    "plain": Trial(MODEL),
    "documents": Trial(MODEL | RESET),
    "plain, recomputed": Trial(MODEL | RECOMPUTE),
    "plain, recomputed selectively": Trial(MODEL | {"checkpoint_activations": "selective"}),
    "plain, one stage": Trial(MODEL | PIPE),
}
TWO = {
    "plain, pp2": Trial(MODEL | TWO_STAGES),
    "plain, pp2, recomputed": Trial(MODEL | RECOMPUTE | TWO_STAGES),
    "documents, pp2": Trial(MODEL | RESET | TWO_STAGES),
    "documents, dp2": Trial(MODEL | RESET),
    "plain, ZeRO-1": staged(1, MODEL),
    "plain, ZeRO-2": staged(2, MODEL),
    "plain, ZeRO-3": staged(3, MODEL),
    "plain, ZeRO-3, recomputed": staged(3, MODEL | RECOMPUTE),
}
HALF = {
    "bf16": Trial(MODEL, BF16),
    "fp16": Trial(MODEL, FP16),
}


@pytest.fixture(scope="module")
def losses() -> dict[str, Losses]:
    return curves({1: ONE | HALF, 2: TWO}, STEPS)


@pytest.mark.parametrize("name", [name for name in ONE | TWO if "," in name])
def test_the_same_curve(losses: dict[str, Losses], name: str) -> None:
    assert_same_curve(losses[name], losses[name.partition(",")[0]])


def test_it_learns_and_documents_are_apart(losses: dict[str, Losses]) -> None:
    assert losses["plain"].held_out < losses["plain"].train[0] - 0.03
    assert abs(losses["documents"].train[0] - losses["plain"].train[0]) > 1e-4


@pytest.mark.parametrize("name", HALF)
def test_half_precision_learns_nearly_the_same(losses: dict[str, Losses], name: str) -> None:
    assert losses[name].train == pytest.approx(losses["plain"].train, abs=2e-2)


def test_a_checkpoint_continues(tmp_path: Path) -> None:
    trials = {"pp2": TWO["plain, pp2"], "zero1": staged(1, MODEL)}
    for uninterrupted, resumed in run_ranks(resume, 2, trials, str(tmp_path), timeout=300)[0].values():
        assert resumed == uninterrupted
