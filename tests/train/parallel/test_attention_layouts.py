"""Every kind of attention gives the same curve on every layout, and another one than plain attention."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.layouts import DOCUMENTS, RPE, SHARDS, SPARSE, TENSOR, TWO_STAGES
from tests.support.trials import Losses, Trial, assert_same_curve, curves, staged

STEPS = 4
BOTH = TENSOR | TWO_STAGES
WHOLE_SENT = {"pipeline": {"pipe_partitioned": False, "grad_partitioned": False}}
DIVIDED = {"partition_activations": True}
RECOMPUTE = {"checkpoint_activations": True, "checkpoint_num_layers": 1}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rpe": RPE,
    "alibi": {"pos_emb": "alibi"},
    "documents": DOCUMENTS,
    "rotary documents": {"pos_emb": "rotary", "reset_position_ids": True},
    "bigbird": {"attention_config": ["global", "bigbird"], "sparsity_config": SPARSE},
    "window": {"sliding_window_width": 3, "num_kv_heads": 2},
    "normed": {"use_qk_layernorm": True, "pos_emb": "rotary"},
    "normed over all heads": {"use_qk_layernorm": True, "qk_layernorm_scope": "all_heads", "norm": "rmsnorm",
                              "num_kv_heads": 2},
    "wide heads and window in every other layer": {"head_dim": 12, "sliding_window_width": 3,
                                                   "window_attn_skip_freq": 2, "add_qkv_bias": True},
    "bounded with norms before and after": {"attn_logit_softcapping": 1.0, "final_logit_softcapping": 2.0,
                                            "norm_placement": "both", "norm": "rmsnorm", "apply_layernorm_1p": True,
                                            "embedding_multiplier": 3.0, "softmax_scale": 0.5},
    "side by side": {"gpt_j_residual": True},
}  # fmt: skip
LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"alone": {}},
    2: {"tp2": TENSOR, "pp2": TWO_STAGES, "shards, recomputed": SHARDS | RECOMPUTE | DIVIDED},
    4: {"tp2 x pp2, recomputed": BOTH | RECOMPUTE, "tp2 x pp2, shards": SHARDS | TWO_STAGES},
}
#: In the largest layouts, the kinds that send something along the pipeline or share it.
FOUR = ("rpe", "documents")


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def losses() -> dict[str, Losses]:
    worlds = {}
    for world, layouts in LAYOUTS.items():
        kinds = {kind: KINDS[kind] for kind in (KINDS if world < 4 else FOUR)}
        worlds[world] = trials = {
            f"{kind}, {name}": Trial(kinds[kind] | layouts[name], WHOLE_SENT if "shards" in name else {})
            for kind in kinds
            for name in layouts
        }
        if world == 2:
            trials |= {f"{kind}, ZeRO-3": staged(3, KINDS[kind]) for kind in FOUR}
            trials["plain, stages of equal size"] = Trial(TWO_STAGES | {"pipe_partition_method": "parameters"})
            trials["rpe, ZeRO-3, recomputed"] = staged(3, KINDS["rpe"] | RECOMPUTE)
            theirs = RECOMPUTE | {"deepspeed_activation_checkpointing": True}
            trials["rpe, ZeRO-2, recomputed by DeepSpeed"] = staged(2, KINDS["rpe"] | theirs)
            trials["rpe, ZeRO-1 in a pipeline"] = Trial(KINDS["rpe"] | TWO_STAGES, {"zero_optimization": {"stage": 1}})
    return curves(worlds, STEPS)


@pytest.mark.timeout(600)
def test_the_same_on_every_layout(losses: dict[str, Losses]) -> None:
    for name, here in losses.items():
        assert_same_curve(here, losses[f"{name.split(', ')[0]}, alone"], norms=1e-3)


@pytest.mark.timeout(600)
def test_every_kind_is_another_model(losses: dict[str, Losses]) -> None:
    found = [losses[f"{kind}, alone"].train for kind in KINDS]
    assert all(abs(a[-1] - b[-1]) > 1e-5 for i, a in enumerate(found) for b in found[:i])
