"""The bytes that the plan counts for a recurrent layer are those that the layer stores."""

from __future__ import annotations

import pytest
import torch

from neoxargs.plan.memory import activations
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.train.model.blocks.mamba import MambaTransformerBlock
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops.selective import Selective
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import small

SEQ, HIDDEN = 256, 64


def test_a_mamba_layer_stores_what_the_plan_counts() -> None:
    config = small(
        hidden_size=HIDDEN, seq_length=SEQ, attention_config=["mamba", "mamba"], mamba_inner_size=128, norm="rmsnorm",
        pos_emb="none", precision="fp32", train_micro_batch_size_per_gpu=2,
    )  # fmt: skip
    layer = MambaTransformerBlock(config, Weights(), Shared(recompute=Selective()))
    weights, stored = {weight.data_ptr() for weight in layer.parameters()}, {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            stored[storage.data_ptr()] = storage
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        layer(torch.randn(2, SEQ, HIDDEN, requires_grad=True))
    measured = sum(storage.nbytes() for storage in stored.values())
    [planned] = activations.blocks(ActivationSizes(config, "cpu"), [0])
    assert planned == pytest.approx(measured, rel=0.02)
