"""GPT-2: learned positions, matrices stored as (inputs, outputs)."""

from __future__ import annotations

from neoxargs.convert.huggingface.family import Family, Fixed, Weights
from neoxargs.convert.huggingface.forms import POSITIONS, TRANSPOSED, TRANSPOSED_HEADS, VOCABULARY
from neoxargs.convert.huggingface.settings import (
    COMMON_FIXED,
    UNGATED_DECODER,
    UNSCALED,
    activation,
    mlp_width_setting,
    requires,
    same,
    weight_tying,
)
from neoxargs.convert.huggingface.windows import NO_WINDOW

CONSTANTS = {
    "norm": "layernorm", "pos_emb": "learned", "use_bias_in_norms": True, "use_bias_in_attn_linear": True,
    "use_bias_in_mlp": True, "gpt_j_residual": False,
}  # fmt: skip
GPT2 = Family(
    architecture="GPT2LMHeadModel",
    model_type="gpt2",
    prefix="transformer.",
    settings=(
        same("n_embd", "hidden_size", 768),
        same("n_layer", "num_layers", 12),
        same("n_head", "num_attention_heads", 12),
        same("n_positions", "max_position_embeddings", 1024),
        same("layer_norm_epsilon", "layernorm_epsilon", 1e-5),
        same("initializer_range", "init_method_std", 0.02),
        same("attn_pdrop", "attention_dropout", 0.1),
        same("resid_pdrop", "hidden_dropout", 0.1),
        same("embd_pdrop", "hidden_dropout", 0.1),
        activation("activation_function", "gelu_new", gated=False),
        mlp_width_setting("n_inner", None, gated=False),
        weight_tying(True),
    ),
    demands=(*requires(CONSTANTS), NO_WINDOW, *UNGATED_DECODER),
    fixed=(
        *COMMON_FIXED, UNSCALED, Fixed("scale_attn_weights", (True,)),
        Fixed("scale_attn_by_inverse_layer_idx", (False,)), Fixed("add_cross_attention", (False,)),
    ),
    constants=CONSTANTS,
    weights=(
        Weights("embedding.word_embeddings", ("wte",), VOCABULARY),
        Weights("positions", ("wpe",), POSITIONS),
        Weights("layers.{}.input_layernorm", ("h.{}.ln_1",)),
        Weights("layers.{}.attention.query_key_value", ("h.{}.attn.c_attn",), TRANSPOSED_HEADS),
        Weights("layers.{}.attention.dense", ("h.{}.attn.c_proj",), TRANSPOSED),
        Weights("layers.{}.post_attention_layernorm", ("h.{}.ln_2",)),
        Weights("layers.{}.mlp.dense_h_to_4h", ("h.{}.mlp.c_fc",), TRANSPOSED),
        Weights("layers.{}.mlp.dense_4h_to_h", ("h.{}.mlp.c_proj",), TRANSPOSED),
        Weights("final_norm", ("ln_f",)),
        Weights("output", ("lm_head",), VOCABULARY),
    ),
    ignored=("attn.bias", "attn.masked_bias"),
)  # fmt: skip
