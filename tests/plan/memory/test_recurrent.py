"""The bytes that the plan counts for a recurrent layer are those that the layer stores."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neoxargs.facts.layer_kinds import block_name
from neoxargs.plan.memory import activations
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.train.model.blocks.table import BLOCKS
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops.selective import Selective
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import small

SEQ, HIDDEN = 256, 64
SIZES: dict[str, dict[str, Any]] = {
    "mamba": {"mamba_inner_size": 128, "norm": "rmsnorm", "pos_emb": "none"},
    "rwkv": {"dim_att": 96, "head_size": 24, "ffn_dim": 224},
}


@pytest.mark.parametrize(("kind", "precision"), [("mamba", "fp32"), ("rwkv", "fp32"), ("rwkv", "bfloat16")])
def test_a_layer_stores_what_the_plan_counts(kind: str, precision: str) -> None:
    config = small(
        hidden_size=HIDDEN, seq_length=SEQ, attention_config=[kind, kind], precision=precision,
        train_micro_batch_size_per_gpu=2, **SIZES[kind],
    )  # fmt: skip
    dtype = getattr(torch, "float32" if precision == "fp32" else precision)
    layer = BLOCKS[block_name(config, 1)](config, Weights(), Shared(recompute=Selective()), 1).to(dtype)
    weights, stored = {weight.data_ptr() for weight in layer.parameters()}, {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            stored[storage.data_ptr()] = storage
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        output = layer(torch.randn(2, SEQ, HIDDEN, dtype=dtype, requires_grad=True))
    assert output.requires_grad
    measured = sum(storage.nbytes() for storage in stored.values())
    [planned] = activations.blocks(ActivationSizes(config, "cpu"), [1])
    assert planned == pytest.approx(measured, rel=0.02)
