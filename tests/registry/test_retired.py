"""Files of GPT-NeoX's first years keep their meaning."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.checks.trainer import trainer_problems
from neoxargs.config.config import Config
from neoxargs.resolve import File, complete, draft

SIZES = """
num-layers: 4
hidden-size: 64
num-attention-heads: 4
seq-length: 16
max-position-embeddings: 16
train-iters: 10
train_batch_size: 4
lr: 0.001
"""


def resolved(text: str) -> Config:
    return complete(draft([File("old.yml", SIZES + text)]), 1)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("geglu: true", {"activation": "geglu"}),
        ("geglu: false", {"activation": "gelu"}),
        ("openai-gelu: true", {"activation": "gelu", "bias_gelu_fusion": True}),
        ("rms-norm: true", {"norm": "rmsnorm"}),
        ("sinusoidal-pos-emb: true", {"pos_emb": "sinusoidal"}),
        ("rpe: true\nrpe-causal: true", {"pos_emb": "rpe"}),
        ("cpu-optimizer: true", {"optimizer.type": "cpu_adam"}),
        ("cpu_torch_adam: true", {"optimizer.type": "cpu_torch_adam"}),
        ("distribute-checkpointed-activations: true", {"partition_activations": True}),
        ("partition-activations: true\ncontigious-checkpointing: true", {"contiguous_checkpointing": True}),
        ("save: here\nsave-interval: 5", {"checkpoint_factor": 5}),
        ("genfile: out.txt\ngreedy: true", {"sample_output_file": "out.txt", "temperature": 0.0}),
        ("out_seq_length: 30", {"maximum_tokens": 30}),
        ("soft_prompt_tuning: {n_tokens: 3}", {"soft_prompt_tuning.num_tokens": 3}),
        ("optimizer: {type: sm3}\nmomentum: 0.5", {"optimizer.params.momentum": 0.5}),
        ("optimizer: {type: sm3, params: {momentum: 0.5}}", {"momentum": 0.5}),
        ("momentum: 0.5", {"optimizer.params.momentum": None}),
        ("no_adamw: true", {"optimizer.params.adam_w_mode": False}),
        ("no_adamw: false", {"optimizer.params.adam_w_mode": True}),
        ("dialect: 2024-03-10", {"moe_token_dropping": True}),
        ("dialect: neox-2026", {"moe_token_dropping": False}),
        ("num_experts: 4\nexpert_interval: 2", {"moe_num_experts": 4, "moe_expert_interval": 2}),
        (
            "mlp_type: llama\nactivation: silu",
            {"activation": "swiglu", "use_bias_in_mlp": False, "mlp_multiple_of": 256, "intermediate_size": 512},
        ),
        ("mlp_type: llama", {"activation": "geglu"}),
        ("mlp_type: regular\nactivation: silu", {"activation": "silu", "use_bias_in_mlp": True}),
    ],
)
def test_old_spelling_means_the_same(written: str, meant: dict[str, Any]) -> None:
    config = resolved(written)
    assert {name: config.get(name) for name in meant} == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("moe_num_experts: 4", {"moe_router_type": "sinkhorn", "moe_expert_interval": 1, "moe_aux_loss_coeff": 0.0}),
        ("moe_num_experts: 4\nmoe_expert_parallel_size: 1", {"moe_router_type": "topk", "moe_expert_interval": 2}),
        (
            "dialect: neox-2026\nmoe_num_experts: 4\nmoe_expert_parallel_size: 1",
            {"moe_router_type": "sinkhorn", "moe_expert_interval": 1},
        ),
        ("dialect: 2024-05-10\nmoe_num_experts: 4", {"moe_router_type": "topk", "moe_expert_interval": 2}),
        (
            "moe_num_experts: 4\nmoe_type: deepspeed\nmoe_top_k: 2\nmoe_loss_coeff: 0.01",
            {
                "moe_router_type": "topk", "moe_expert_interval": 2, "moe_normalize_expert_weights": True,
                "moe_aux_loss_coeff": 0.01,
            },
        ),
        ("num_experts: 4\nmoe_token_dropping: true\nmoe_router_type: sinkhorn", {"moe_router_type": "sinkhorn"}),
    ],
)  # fmt: skip
def test_experts_of_2024_and_of_2025_have_their_defaults(written: str, meant: dict[str, Any]) -> None:
    config = resolved(written)
    assert {name: config.get(name) for name in meant} == meant
    assert [problem for problem in trainer_problems(config) if problem.severity == "error"] == []


def test_settings_of_experts_without_experts_have_no_effect() -> None:
    found = trainer_problems(resolved("moe_type: deepspeed\nmomentum: 0.5\n"))
    assert [(problem.id, problem.about, problem.severity) for problem in found] == [
        ("no-effect", ("moe_type",), "warning"),
        ("no-effect", ("momentum",), "warning"),
    ]
