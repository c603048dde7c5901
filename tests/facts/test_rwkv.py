"""The counts of RWKV layers: parameters and stored activations are those of the built model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from neoxargs.facts.model import flops_per_token, parameters
from neoxargs.plan.memory import rwkv
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.train.model.blocks.rwkv import RwkvTransformerBlock
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import VOCABULARY, small

SIZES = {"hidden_size": 64, "dim_att": 96, "head_size": 24, "ffn_dim": 224, "seq_length": 256}


@pytest.mark.parametrize("kinds", [["rwkv", "rwkv"], ["global", "rwkv"]], ids="+".join)
def test_parameters_are_those_of_the_built_model(kinds: list[str]) -> None:
    config = small(attention_config=kinds, **SIZES)
    model = GPT(config, VOCABULARY, Weights(), Shared())
    assert parameters(config, VOCABULARY.padded) == sum(weight.numel() for weight in model.parameters())


def test_operations_are_those_that_gpt_neox_counts() -> None:
    """GPT-NeoX leaves out the matrices of low rank, and counts two products with the vocabulary."""
    layers, h, heads, rows = 12, 768, 12, 50304
    sizes = {"num_layers": layers, "hidden_size": h, "num_attention_heads": heads, "seq_length": 512}
    config = small(attention_config=["rwkv"] * layers, dim_att=h, head_size=h // heads, ffn_dim=2688, **sizes)
    theirs = 78 * h**2 * layers + 18 * h**2 * layers // heads + 6 * h * rows
    assert flops_per_token(config, rows) == theirs + 6 * layers * 448 * h


@pytest.mark.parametrize("precision", ["fp32", "bfloat16"])
def test_what_a_layer_stores(precision: str) -> None:
    config = small(attention_config=["rwkv"] * 2, train_micro_batch_size_per_gpu=2, precision=precision, **SIZES)
    dtype = getattr(torch, "float32" if precision == "fp32" else precision)
    layer = RwkvTransformerBlock(config, Weights(), Shared(), 1).to(dtype)
    weights = {weight.data_ptr() for weight in layer.parameters()}
    held: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(torch.randn(2, 256, 64, dtype=dtype, requires_grad=True))
    measured = sum(tensor.untyped_storage().nbytes() for tensor in held.values())
    assert output.requires_grad
    assert rwkv.stored(ActivationSizes(config, "cpu")) == pytest.approx(measured, rel=0.02)
