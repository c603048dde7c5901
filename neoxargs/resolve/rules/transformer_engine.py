"""Transformer Engine's layers: what they imply for other parameters, and what cannot be combined with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neoxargs.resolve.rules.rule import Findings, check, derive, refuse
from neoxargs.resolve.rules.synonyms import yaml_form

#: Transformer Engine's norms -> the same norm without its name.
PLAIN_NORMS = {"te_layernorm": "layernorm", "te_rmsnorm": "rmsnorm"}
#: The activations of Transformer Engine's LayerNormMLP that GPT-NeoX has as well.
MLP_ACTIVATIONS = ("gelu", "geglu", "relu", "reglu", "swiglu")
MLP_NORMS = ("layernorm", "rmsnorm")


@derive
def norm(norm: str | None) -> str | None:
    """the same norm as Transformer Engine's"""
    return PLAIN_NORMS.get(norm, norm) if norm else None


@derive
def exact_mlp_width(te_layernorm_mlp: bool) -> bool | None:
    """Transformer Engine's LayerNormMLP reads intermediate_size as the width"""
    return True if te_layernorm_mlp else None


@check
def te_layernorm_mlp_determines_mlp(
    te_layernorm_mlp: bool,
    use_bias_in_mlp: bool,
    gpt_j_tied: bool,
    exact_mlp_width: bool,
    moe_num_experts: int,
    norm_placement: str,
) -> Findings:
    """Transformer Engine's LayerNormMLP is a norm and a feed-forward layer in one, with biases. GPT-NeoX ignores
    parameters that contradict this, and does not normalise the inputs of experts.

        te_layernorm_mlp: true
        use_bias_in_mlp: false
    """
    if te_layernorm_mlp:
        yield from _implied_by(
            "te_layernorm_mlp",
            use_bias_in_mlp=(True, use_bias_in_mlp),
            gpt_j_tied=(False, gpt_j_tied),
            exact_mlp_width=(True, exact_mlp_width),
            moe_num_experts=(1, moe_num_experts),
            norm_placement=("before", norm_placement),
        )


@check
def te_layernorm_mlp_has_norm_and_activation(te_layernorm_mlp: bool, norm: str, activation: str) -> Findings:
    """Transformer Engine's LayerNormMLP supports only some norms and activations. With any other, every GPT-NeoX rank
    stops when it builds the first layer.

        te_layernorm_mlp: true
        activation: mish
    """
    for name, value, known in (("norm", norm, MLP_NORMS), ("activation", activation, MLP_ACTIVATIONS)):
        if te_layernorm_mlp and value not in known:
            what = f"te_layernorm_mlp does not support {name} ({value})"
            yield refuse(what, f"set {name} to one of {', '.join(known)}", about=["te_layernorm_mlp", name])
            return


@check
def te_mha_determines_attention(
    te_mha: bool, use_bias_in_attn_linear: bool, use_qk_layernorm: bool, use_mup: bool
) -> Findings:
    """Transformer Engine's MultiheadAttention, as GPT-NeoX calls it, has biases in all projections, no norms of queries
    and keys, and divides scores by the root of the head dimension. GPT-NeoX ignores parameters that contradict this.

        te_mha: true
        use_bias_in_attn_linear: false
    """
    if te_mha:
        yield from _implied_by(
            "te_mha",
            use_bias_in_attn_linear=(True, use_bias_in_attn_linear),
            use_qk_layernorm=(False, use_qk_layernorm),
            use_mup=(False, use_mup),
        )


@check
def te_mha_is_dense(te_mha: bool, attention_config: Sequence[str], pos_emb: str) -> Findings:
    """Transformer Engine's MultiheadAttention, as GPT-NeoX calls it, is dense and adds nothing to the scores. GPT-NeoX
    ignores other kinds of layers in attention_config, and with pos_emb: alibi or rpe, a model has no positions at all.

        te_mha: true
        pos_emb: alibi
    """
    other = next((kind for kind in attention_config if kind not in ("global", "flash")), None)
    if te_mha and pos_emb in ("alibi", "rpe"):
        hint = "remove te_mha, or set pos_emb to rotary, learned, sinusoidal or none"
        yield refuse(f"te_mha and pos_emb ({pos_emb}) cannot be combined", hint, about=["te_mha", "pos_emb"])
    elif te_mha and other:
        hint = "remove te_mha, or use only global or flash layers in attention_config"
        yield refuse(f"te_mha and {other} layers cannot be combined", hint, about=["te_mha", "attention_config"])


def _implied_by(switch: str, **implied: tuple[Any, Any]) -> Findings:
    """Yield an error about the first parameter that differs from what the switch implies.

    implied: parameter -> its value with the switch, its value in the configuration.
    """
    for name, (expected, value) in implied.items():
        if value != expected:
            what = f"{switch} implies {name}: {yaml_form(expected)}, but {name} is {yaml_form(value)}"
            yield refuse(what, f"remove {name} or {switch}", about=[switch, name])
            return
