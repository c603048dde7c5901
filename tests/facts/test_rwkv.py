"""The counts of RWKV layers: parameters are those of the built model, operations those of GPT-NeoX."""

from __future__ import annotations

import pytest

from neoxargs.facts.model import flops_per_token, parameters
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
