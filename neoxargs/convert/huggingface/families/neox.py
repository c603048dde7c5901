"""GPT-NeoX in transformers, such as Pythia and GPT-NeoX-20B. Weights have the same form and almost the same names."""

from __future__ import annotations

from neoxargs.convert.huggingface.family import Family, Weights, same_names
from neoxargs.convert.huggingface.forms import VOCABULARY
from neoxargs.convert.huggingface.settings import (
    COMMON_FIXED,
    UNGATED_DECODER,
    UNSCALED,
    activation,
    mlp_width_setting,
    requires,
    rope_keys,
    rotary_base,
    same,
    weight_tying,
)
from neoxargs.convert.huggingface.windows import NO_WINDOW

CONSTANTS = {"norm": "layernorm", "pos_emb": "rotary", "use_bias_in_norms": True, "use_bias_in_mlp": True}
NEOX = Family(
    architecture="GPTNeoXForCausalLM",
    model_type="gpt_neox",
    prefix="gpt_neox.",
    settings=(
        same("hidden_size", "hidden_size", 6144),
        same("num_hidden_layers", "num_layers", 44),
        same("num_attention_heads", "num_attention_heads", 64),
        same("max_position_embeddings", "max_position_embeddings", 2048),
        same("layer_norm_eps", "layernorm_epsilon", 1e-5),
        same("initializer_range", "init_method_std", 0.02),
        same("attention_dropout", "attention_dropout", 0.0),
        same("hidden_dropout", "hidden_dropout", 0.0),
        same("use_parallel_residual", "gpt_j_residual", True),
        same("attention_bias", "use_bias_in_attn_linear", True),
        activation("hidden_act", "gelu", gated=False),
        mlp_width_setting("intermediate_size", 24576, gated=False),
        rotary_base("rope_parameters.rope_theta", ("rotary_emb_base", "rope_theta")),
        same("rope_parameters.partial_rotary_factor", "rotary_pct", 0.25, ("rotary_pct", "partial_rotary_factor")),
        weight_tying(False),
    ),
    demands=(*requires(CONSTANTS), NO_WINDOW, *UNGATED_DECODER),
    fixed=(*COMMON_FIXED, UNSCALED),
    constants=CONSTANTS,
    weights=(
        Weights("embedding.word_embeddings", ("embed_in",), VOCABULARY),
        *same_names(
            "input_layernorm", "attention.query_key_value", "attention.dense", "post_attention_layernorm",
            "mlp.dense_h_to_4h", "mlp.dense_4h_to_h",
        ),
        Weights("final_norm", ("final_layer_norm",)),
        Weights("output", ("embed_out",), VOCABULARY),
    ),
    compatibility_keys=lambda keys: rope_keys(keys, rope_theta="rotary_emb_base", partial_rotary_factor="rotary_pct"),
    aliases={"lm_head": "embed_out"},
)  # fmt: skip
