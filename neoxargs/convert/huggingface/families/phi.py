"""Phi-3: a LLaMA whose projections are fused: all queries, all keys, all values; and the gate before the value."""

from __future__ import annotations

from dataclasses import replace

from neoxargs.convert.huggingface.families.llama import (
    DEMANDS,
    LLAMA,
    NO_BIASES,
    WEIGHTS,
    decoder_settings,
    rope_theta,
)
from neoxargs.convert.huggingface.family import OMIT, Setting, Values, Weights
from neoxargs.convert.huggingface.forms import FUSED_HEADS, GATE_FIRST
from neoxargs.convert.huggingface.settings import kv_heads, only, requires, same
from neoxargs.convert.huggingface.windows import EVERY_WINDOW, sliding_window

FUSED = {
    "layers.{}.attention.query_key_value": ("layers.{}.self_attn.qkv_proj", FUSED_HEADS),
    "layers.{}.mlp.dense_h_to_4h": ("layers.{}.mlp.gate_up_proj", GATE_FIRST),
}


def _scaling_name(row: Setting) -> Setting:
    """Accept the names that `longrope` had in the first models."""
    if not row.key.endswith("rope_type"):
        return row

    def to_ours(value: str) -> Values | None:
        return row.to_ours("longrope" if value in ("su", "yarn") else value)

    return row._replace(to_ours=to_ours)


def _original_context(keys: Values) -> Values:
    """Return the context of the training before, which only scaled positions need."""
    rope = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) == "default":
        return {}
    return {"rope_scaling.original_max_position_embeddings": keys.get("original_max_position_embeddings", 4096)}


PHI3 = replace(
    LLAMA,
    architecture="Phi3ForCausalLM",
    model_type="phi3",
    settings=(
        *map(
            _scaling_name,
            decoder_settings(
                ("longrope",), hidden_size=3072, intermediate_size=8192, max_position_embeddings=4096, rms_norm_eps=1e-5
            ),
        ),
        # transformers prefers this key to the one of the same name in `rope_parameters`
        Setting(
            "original_max_position_embeddings", ("rope_scaling.original_max_position_embeddings",), 4096,
            lambda config: OMIT if config.rope_scaling.rope_type == "default" else (
                config.rope_scaling.original_max_position_embeddings or config.shape.max_position_embeddings
            ),
            lambda value: {},
        ),
        same("rope_parameters.partial_rotary_factor", "rotary_pct", 1.0, ("partial_rotary_factor",)),
        same("resid_pdrop", "hidden_dropout", 0.0), same("embd_pdrop", "hidden_dropout", 0.0),
        kv_heads(None), sliding_window(None),
    ),
    demands=(
        *(demand for demand in DEMANDS if demand.ours != "rotary_pct"), EVERY_WINDOW,
        *requires(NO_BIASES),
        only("rope_scaling.rope_type", "default", "longrope"),
    ),
    constants={"norm": "rmsnorm", "pos_emb": "rotary", **NO_BIASES},
    weights=tuple(
        Weights(row.ours, (FUSED[row.ours][0],), FUSED[row.ours][1]) if row.ours in FUSED else row for row in WEIGHTS
    ),
    from_keys=_original_context,
    # transformers' default, 32000, is not a row of smaller vocabularies
    compatibility_keys=lambda keys: {**rope_theta(keys), "pad_token_id": None},
)  # fmt: skip
