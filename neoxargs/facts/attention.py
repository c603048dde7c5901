"""The attention of a layer: its sizes, and how its scores are computed.

Trainer, plan and pages read these functions; a mechanism that changes scores is a field of `ScoreRule`.
"""

from __future__ import annotations

from neoxargs.base.record import Record
from neoxargs.config.config import Config
from neoxargs.facts.layer_kinds import layer_kind
from neoxargs.facts.recurrent import Tensor
from neoxargs.registry.model import Attention, Shape

#: Head dimensions of flex_attention's kernels, which compute those between two powers of two as the larger one.
FLEX_WIDTHS = range(16, 257, 16)
#: Kinds of attention whose mask is purely causal.
CAUSAL = ("global", "flash")


def head_dim(shape: Shape) -> int:
    """Return the width of a head's query, key and value."""
    return shape.head_dim or shape.hidden_size // shape.num_attention_heads


def attention_width(shape: Shape) -> int:
    """Return the width of the queries of all heads, and of what they read: as wide as the residual stream or not."""
    return shape.num_attention_heads * head_dim(shape)


def qkv_rows(config: Config) -> int:
    """Return the rows of the fused projection to queries, keys and values."""
    shape = config.shape
    return head_dim(shape) * (shape.num_attention_heads + 2 * shape.num_kv_heads)


def has_qkv_bias(attention: Attention) -> bool:
    """Return whether the projection to queries, keys and values has a bias."""
    return attention.use_bias_in_attn_linear or attention.add_qkv_bias


def attention_weights(config: Config) -> list[Tensor]:
    """Return the weights of a layer's attention, except norms."""
    hidden, rows = config.shape.hidden_size, qkv_rows(config)
    weights = [
        Tensor("query_key_value.weight", rows * hidden, multiplies=True),
        Tensor("dense.weight", hidden * attention_width(config.shape), multiplies=True),
    ]
    if has_qkv_bias(config.attention):
        weights.append(Tensor("query_key_value.bias", rows))
    if config.attention.use_bias_in_attn_linear:
        weights.append(Tensor("dense.bias", hidden, sharded=False))
    return weights


def layer_window(attention: Attention, layer: int) -> int:
    """Return how many tokens before itself a token sees in this layer, counted from 0; 0 if it sees all of them."""
    full = attention.window_attn_skip_freq
    has_window = full[layer] if isinstance(full, list) else full is None or (layer + 1) % full
    return (attention.sliding_window_width or 0) if has_window else 0


class ScoreRule(Record):
    """What becomes of the scores of a layer before and in the softmax."""

    softcap: float = 0.0
    """The bound on scores (`attn_logit_softcapping`); 0 means none."""
    divisor: int = 1
    """Scores in half precision are divided by this number to prevent overflow: the layer's number, counted from 1."""
    causal_in_steps: bool = False
    """Whether half precision is computed in steps, with the softmax in fp32, if the only mask is the causal one."""
    masked_in_steps: bool = False
    """The same with any other mask, or with a bias."""
    always_in_steps: bool = False
    """Whether everything is computed in steps, in fp32 too."""

    @property
    def fused(self) -> bool:
        """Whether torch's fused kernels can compute the scores; flex_attention, and separate steps, always can."""
        return not self.softcap

    def asks_for_steps(self, half: bool, masked: bool) -> bool:
        """Whether the configuration asks for separate steps. masked: with another mask than the causal one, or a bias.

        half: whether activations are in fp16 or bf16.
        """
        return self.always_in_steps or (half and (self.masked_in_steps if masked else self.causal_in_steps))


def score_rule(config: Config, layer: int) -> ScoreRule:
    """Return the rule of a layer, counted from 0.

    As in Megatron, the first layer divides by 1. `flash` layers, and a kernel that `attention_backend` names, do not
    store the scores.
    """
    attention, fusion = config.attention, config.fusion
    softcap = attention.attn_logit_softcapping or 0.0
    scaled = attention.apply_query_key_layer_scaling
    always = attention.attention_backend == "unfused"
    asked = attention.attention_backend == "auto" and layer_kind(config, layer) != "flash"
    if not (always or (asked and (scaled or attention.attention_softmax_in_fp32))):
        return ScoreRule(softcap)
    return ScoreRule(
        softcap,
        layer + 1 if scaled else 1,
        causal_in_steps=not fusion.scaled_upper_triang_masked_softmax_fusion,
        masked_in_steps=not fusion.scaled_masked_softmax_fusion,
        always_in_steps=always,
    )


def mechanisms(config: Config) -> list[str]:
    """Return the names of the mechanisms that a model's attention has besides grouped queries, biases and norms."""
    windows = {layer_window(config.attention, layer) > 0 for layer in range(config.shape.num_layers)}
    named = {
        "windows": windows == {True},
        "windows in some layers": len(windows) > 1,
        "bounded scores": score_rule(config, 0).softcap > 0,
    }
    return [name for name, is_there in named.items() if is_there]
