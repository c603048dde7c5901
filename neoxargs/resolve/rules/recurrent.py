"""Recurrent layers: their sizes, and what they cannot be combined with."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from neoxargs.base.problems import listed
from neoxargs.facts.layer_kinds import RECURRENT
from neoxargs.resolve.rules.rule import Findings, check, derive, refuse
from neoxargs.resolve.rules.shared_findings import multiple_of


@derive
def mamba_inner_size(
    hidden_size: int, intermediate_size: int, expansion_factor: float | None, written: Collection[str]
) -> int:
    """intermediate_size, or expansion_factor x hidden_size, with a factor of 2 if neither is set"""
    return intermediate_size if "intermediate_size" in written else int((expansion_factor or 2) * hidden_size)


@check
def tensor_parallel_divides_mamba(
    mamba_inner_size: int, model_parallel_size: int, attention_config: Sequence[str]
) -> Findings:
    """Tensor parallel ranks divide the inner channels of a Mamba layer evenly among them. With a remainder, the shapes
    of tensors would differ between the ranks, and every rank would stop when it builds the layer.

        attention_config: [[["mamba"], "all"]]
        mamba_inner_size: 129
        model_parallel_size: 2
    """
    if "mamba" in attention_config:
        yield from multiple_of("mamba_inner_size", mamba_inner_size, "model_parallel_size", model_parallel_size)


@check
def recurrent_layers_exclude_adapters_and_mup(
    attention_config: Sequence[str], lora__rank: int, use_mup: bool
) -> Findings:
    """Adapters (lora) are defined for the matrices of attention and feed-forward, and muP's rules for layers that are
    made of these. A recurrent layer has neither: its adapters would be left out, or its weights scaled by rules that do
    not hold for them, without an error.

        attention_config: [[["mamba"], "all"]]
        lora: {rank: 8}
    """
    kinds = [kind for kind in RECURRENT if kind in attention_config]
    if kinds and (lora__rank or use_mup):
        other, name = ("lora", "lora.rank") if lora__rank else ("use_mup", "use_mup")
        what = f"{other} cannot be combined with {listed(kinds, 'and')} layers"
        yield refuse(what, f"remove {other}", about=["attention_config", name])


@check
def positions_need_attention_layers(attention_config: Sequence[str], pos_emb: str) -> Findings:
    """rotary, alibi and rpe encode positions where queries meet keys, inside of attention. A model without attention
    layers would not have these positions; the order of tokens is known to recurrent layers anyway.

        attention_config: [[["mamba"], "all"]]
        pos_emb: rotary
    """
    if pos_emb in ("rotary", "alibi", "rpe") and all(kind in RECURRENT for kind in attention_config):
        what = f"pos_emb ({pos_emb}) acts inside of attention, but attention_config has no layer with attention"
        yield refuse(what, "set pos_emb to none, or to learned or sinusoidal")
