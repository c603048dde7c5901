"""The GPT's own shape and parts."""

from __future__ import annotations

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count


class Shape(Group, origin="Meg"):
    """How wide and deep the transformer is."""

    num_layers: Count = param(megatron="num-layers")
    """Number of transformer layers."""

    hidden_size: Count = param(megatron="hidden-size")
    """Width of the residual stream."""

    num_attention_heads: Count = param(megatron="num-attention-heads")
    """Number of attention heads per layer; they share `hidden_size` equally."""
