"""Files of GPT-NeoX's first years mean today what they meant then."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.resolve import Config, Text, complete, draft

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
    return complete(draft([Text("old.yml", SIZES + text)]), 1)


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
