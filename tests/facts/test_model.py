"""The counts of `facts/model.py` equal the parameters and operations of the built model."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, mm_flop

from neoxargs.facts.model import flops_per_token, parameters
from neoxargs.plan.memory.stages import parameters_by_part, pipeline_stages
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import SMALL, VOCABULARY, batch, small

CHANGES = {
    "as it is": {},
    "untied": {"no_weight_tying": True},
    "no positions": {"pos_emb": "none"},
    "position rows skipped": {"opt_pos_emb_offset": 2, "max_position_embeddings": 24},
    "no biases": {"use_bias_in_attn_linear": False, "use_bias_in_mlp": False, "use_bias_in_norms": False},
    "norms without weights": {"norm": "non_parametric_layernorm"},
    "shared keys": {"num_kv_heads": 2},
    "rotary": {"pos_emb": "rotary"},
    "norms without offsets": {"norm": "rmsnorm"},
    "norms with one scale": {"norm": "scalenorm"},
    "gated, rounded up": {"activation": "geglu", "intermediate_size": 100, "mlp_multiple_of": 8},
    "rounded up": {"intermediate_size": 100, "mlp_multiple_of": 64},
    "side by side": {"gpt_j_residual": True},
    "one norm a layer": {"gpt_j_residual": True, "gpt_j_tied": True},
    "relative positions": {"pos_emb": "rpe"},
    "norms of queries and keys": {"use_qk_layernorm": True},
    "shared layers": {"num_layers": 4, "num_unique_layers": 2},
    "experts in every second layer": {"moe_router_type": "topk", "moe_num_experts": 4, "moe_top_k": 2, "num_layers": 3},
    "gated experts and shared ones": {
        "moe_router_type": "topk", "moe_num_experts": 4, "moe_top_k": 1, "moe_expert_interval": 1,
        "moe_num_shared_experts": 2,
        "activation": "swiglu", "intermediate_size": 96, "use_bias_in_mlp": False,
    },
    "experts and a dense network": {
        "moe_router_type": "topk", "moe_num_experts": 4, "moe_top_k": 1, "moe_type": "deepspeed",
    },
    "wider heads": {"head_dim": 12, "num_kv_heads": 2, "pos_emb": "rotary", "use_qk_layernorm": True},
    "biases of queries, keys and values": {"use_bias_in_attn_linear": False, "add_qkv_bias": True},
    "norms over all heads": {
        "use_qk_layernorm": True,
        "qk_layernorm_scope": "all_heads",
        "norm": "rmsnorm",
        "num_kv_heads": 2,
    },
    "norms after": {"norm_placement": "after"},
    "norms before and after, with 1 + weight": {"norm_placement": "both", "apply_layernorm_1p": True},
    "wide": {"intermediate_size": 72, "num_layers": 3, "hidden_size": 48},
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_counts_equal_those_of_the_built_model(change: str) -> None:
    config, rows = small(**CHANGES[change], world_size=1), VOCABULARY.padded
    model = GPT(config, VOCABULARY, Weights(), Shared())
    assert parameters(config, rows) == sum(p.numel() for p in model.parameters())
    [stage] = pipeline_stages(config, rows)
    assert stage.parameters == sum(parameters_by_part(config, rows).values()) == parameters(config, rows)
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: _added_in_place})
    with counter, sdpa_kernel(SDPBackend.MATH):  # flash kernels recompute the scores
        model(*batch(2)).backward()
    assert flops_per_token(config, VOCABULARY.padded) == counter.get_total_flops() / (2 * SMALL["seq_length"])


@pytest.mark.parametrize("untied", [False, True])
def test_a_reward_model_has_a_head_in_place_of_the_output_layer(untied: bool) -> None:
    config = small(train_impl="rm", no_weight_tying=untied)
    model = GPT(config, VOCABULARY, Weights(), Shared())
    assert parameters(config, VOCABULARY.padded) == sum(p.numel() for p in model.parameters())
    assert sum(parameters_by_part(config, VOCABULARY.padded).values()) == parameters(config, VOCABULARY.padded)
    assert model.rm_linear.weight.shape == (1, config.shape.hidden_size) and not hasattr(model, "output")


def _added_in_place(_, a, b, **rest) -> int:
    return mm_flop(a, b, out_val=None)
