"""The kinds of layers in `attention_config`: attention with a feed-forward network, or a recurrent layer.

Recurrent layers carry a state from token to token, and replace attention and feed-forward.
"""

from __future__ import annotations

from neoxargs.config.config import Config

#: Kind of a recurrent layer -> the class name of its block. DeepSpeed's pipeline counts layers by class name: with
#: `transformer` in all of them, the default of `pipe_partition_method` counts layers of every kind.
RECURRENT = {"mamba": "MambaTransformerBlock", "rwkv": "RwkvTransformerBlock"}
#: Class name of the block of all other kinds, and of that with `gpt_j_residual`.
ATTENTION_BLOCK, PARALLEL_BLOCK = "TransformerBlock", "ParallelTransformerBlock"


def layer_kind(config: Config, layer: int) -> str:
    """Return the layer's kind in `attention_config`."""
    given = "attention_config" in config.values
    return str(config.attention.attention_config[layer]) if given else "global"


def has_attention(config: Config, layer: int) -> bool:
    """Whether a layer consists of attention and a feed-forward network."""
    return layer_kind(config, layer) not in RECURRENT


def attention_layers(config: Config) -> list[int]:
    """Return the layers that have attention."""
    if "attention_config" not in config.values:
        return list(range(config.shape.num_layers))
    return [layer for layer, kind in enumerate(config.attention.attention_config) if kind not in RECURRENT]


def block_name(config: Config, layer: int) -> str:
    """Return the class name of a layer's block, which `pipe_partition_method: type:…` matches."""
    of_attention = PARALLEL_BLOCK if config.attention.gpt_j_residual else ATTENTION_BLOCK
    return RECURRENT.get(layer_kind(config, layer), of_attention)
