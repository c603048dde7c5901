"""A model with experts learns the same on every layout: tensor and expert ranks, stages, replicas, ZeRO's shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.experts import BY_FOUR, BY_TWO, BY_WIDTH, MOE, staged
from tests.support.layouts import BF16, FP16, PIPE, TENSOR, TWO_STAGES
from tests.support.ranks import run_ranks
from tests.support.trials import Losses, Trial, assert_same_curve, curves, resume, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 6
SINKHORN = {"moe_num_experts": 4, "moe_router_type": "sinkhorn"}
DEEPSPEED = {
    "moe_num_experts": 4, "moe_top_k": 2, "moe_router_type": "topk", "moe_type": "deepspeed", "moe_token_dropping": True
}  # fmt: skip
PARALLEL_RESIDUAL = {"gpt_j_residual": True}


ONE = {
    "plain": Trial(MOE),
    "sinkhorn": Trial(MOE | SINKHORN),
    "deepspeed": Trial(DEEPSPEED),
    "parallel residual": Trial(MOE | PARALLEL_RESIDUAL),
    "every second layer": Trial(MOE | {"moe_expert_interval": 2}),
}
TWO = {
    "tp2": Trial(MOE | TENSOR),
    "tp2, width of each expert": Trial(MOE | BY_WIDTH),
    "tp2, sequence parallel, pipeline": Trial(MOE | TENSOR | PIPE | {"sequence_parallel": True}),
    "pp2": Trial(MOE | TWO_STAGES),
    "pp2, recomputed": Trial(MOE | TWO_STAGES | {"checkpoint_activations": True}),
    "dp2": Trial(MOE),
    "dp2, ZeRO-1": staged(1),
    "dp2, ZeRO-2": staged(2),
    "dp2, ZeRO-3": staged(3),
    "ep2": Trial(MOE | BY_TWO),
    "ep2, recomputed": Trial(MOE | BY_TWO | {"checkpoint_activations": True}),
    "ep2, pipeline": Trial(MOE | BY_TWO | PIPE),
    "ep2, ZeRO-1": staged(1, BY_TWO),
    "ep2, ZeRO-2": staged(2, BY_TWO),
    "ep2, pipeline, ZeRO-1": staged(1, BY_TWO | PIPE),
    "sinkhorn, ep2": Trial(MOE | SINKHORN | BY_TWO),
    "deepspeed, ep2": Trial(DEEPSPEED | BY_TWO),
    "sinkhorn, tp2": Trial(MOE | SINKHORN | TENSOR),
    "deepspeed, tp2": Trial(DEEPSPEED | TENSOR),
    "parallel residual, tp2": Trial(MOE | PARALLEL_RESIDUAL | TENSOR),
}
FOUR = {
    "tp2 x pp2": Trial(MOE | TENSOR | TWO_STAGES),
    "dp2 x pp2, ZeRO-1": staged(1, TWO_STAGES),
    "ep4": Trial(MOE | BY_FOUR),
    "ep4, pipeline, ZeRO-1": staged(1, BY_FOUR | PIPE),
    "ep2 of dp4": Trial(MOE | BY_TWO),
    "ep2 of dp4, ZeRO-1": staged(1, BY_TWO),
    "ep2 of dp4, ZeRO-2": staged(2, BY_TWO),
    "ep2 x tp2": Trial(MOE | BY_TWO | TENSOR),
    "ep2 x tp2, width of each expert": Trial(MOE | BY_TWO | BY_WIDTH),
    "ep2 x tp2, sequence parallel": Trial(MOE | BY_TWO | TENSOR | {"sequence_parallel": True}),
    "ep2 x pp2": Trial(MOE | BY_TWO | TWO_STAGES),
    "every second layer, ep2 x pp2": Trial(MOE | BY_TWO | TWO_STAGES | {"moe_expert_interval": 2}),
}
#: Half precision, with and without expert parallelism.
HALF = {
    f"{name}{suffix}": Trial(MOE | config | experts, json)
    for suffix, experts in (("", {}), (", ep2", BY_TWO))
    for name, config, json in (
        ("bf16", {}, BF16),
        ("bf16, pipeline", PIPE, BF16),
        ("bf16, ZeRO-2", {"zero_optimization.stage": 2}, BF16 | {"zero_optimization": {"stage": 2}}),
        ("fp16", {}, FP16),
    )
}


@pytest.fixture(scope="module")
def losses() -> dict[str, Losses]:
    return curves({1: ONE, 2: TWO, 4: FOUR}, STEPS)


@pytest.mark.parametrize("name", [*TWO, *FOUR])
def test_the_same_curve(losses: dict[str, Losses], name: str) -> None:
    kind = next((kind for kind in ONE if name.startswith(kind)), "plain")
    assert_same_curve(losses[name], losses[kind])


def test_half_precision_learns_the_same_with_divided_experts() -> None:
    found = run_ranks(train, 2, HALF, STEPS, timeout=550)[0]
    for name in HALF:
        if not name.endswith(", ep2"):
            assert found[f"{name}, ep2"].train == pytest.approx(found[name].train, abs=5e-3)
            assert found[f"{name}, ep2"].norms == pytest.approx(found[name].norms, rel=3e-2)


def test_it_learns(losses: dict[str, Losses]) -> None:
    for name in ONE:
        assert losses[name].held_out < losses[name].train[0] - 0.03


def test_a_checkpoint_continues(tmp_path: Path) -> None:
    trials = {
        "tp2": Trial(MOE | TENSOR),
        "zero1": staged(1),
        "ep2": Trial(MOE | BY_TWO),
        "ep2, zero1": staged(1, BY_TWO),
        "ep2, bf16, pipeline": HALF["bf16, pipeline, ep2"],
    }
    for uninterrupted, resumed in run_ranks(resume, 2, trials, str(tmp_path), timeout=300)[0].values():
        assert resumed == uninterrupted
