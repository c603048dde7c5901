"""The GPT's own shape and parts."""

from __future__ import annotations

from typing import Any, Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Fraction, Natural, Positive

InitMethod = Literal[
    "normal", "scaled_normal", "orthogonal", "scaled_orthogonal", "xavier_uniform", "xavier_normal", "wang_init",
    "small_init", "single_residual_scaled_normal",
]  # fmt: skip
Activation = Literal[
    "gelu", "geglu", "relu", "softsign", "swish", "mish", "silu", "reglu", "swiglu", "bilinear", "glu",
]  # fmt: skip


class Shape(Group, origin="Meg"):
    """How wide and deep the transformer is."""

    num_layers: Count = param(megatron="num-layers")
    hidden_size: Count = param(megatron="hidden-size")
    num_attention_heads: Count = param(megatron="num-attention-heads")
    num_kv_heads: Count = param(derived=True, origin="NeoX", megatron="num-query-groups")
    intermediate_size: Count = param(derived=True, origin="NeoX", megatron="ffn-hidden-size")
    expansion_factor: Positive | None = param(None, origin="NeoX")
    mlp_multiple_of: Count = param(1, origin="NeoX")
    seq_length: Count = param(megatron="seq-length")
    max_position_embeddings: Count = param(megatron="max-position-embeddings")
    num_unique_layers: Count | None = param(None)
    param_sharing_style: Literal["grouped", "spaced"] = param("grouped")


class Embedding(Group, origin="NeoX"):
    """Token and position embeddings, and the output layer."""

    pos_emb: Literal["learned", "rotary", "sinusoidal", "rpe", "alibi", "none"] = param(
        "learned", megatron="position-embedding-type"
    )
    rotary_pct: Fraction = param(1.0, megatron="rotary-percent")
    rotary_emb_base: Count = param(10000, megatron="rotary-base")
    rotary_save_freqs_buffer: bool = param(False)
    rpe_num_buckets: Count = param(32, megatron="relative-attention-num-buckets")
    rpe_max_distance: Count = param(128, megatron="relative-attention-max-distance")
    opt_pos_emb_offset: Natural = param(0)
    no_weight_tying: bool = param(False, megatron="untie-embeddings-and-output-weights")
    make_vocab_size_divisible_by: Count = param(128, origin="Meg", megatron="make-vocab-size-divisible-by")
    padded_vocab_size: Count = param(derived=True, origin="Meg", megatron="padded-vocab-size")
    output_layer_parallelism: Literal["column", "row"] = param("column")
    sinusoidal_pos_emb: bool = param(False, becomes={True: {"pos_emb": "sinusoidal"}, False: {}})
    rpe: bool = param(False, becomes={True: {"pos_emb": "rpe"}, False: {}})
    rpe_causal: bool = param(False, becomes={True: {}, False: {}})


class Norm(Group, origin="NeoX"):
    """Normalisation layers."""

    norm: Literal["layernorm", "rmsnorm", "non_parametric_layernorm", "scalenorm", "te_rmsnorm", "te_layernorm"] = (
        param("layernorm", megatron="normalization")
    )
    layernorm_epsilon: Positive = param(1e-5, origin="Meg", megatron="norm-epsilon")
    rms_norm_epsilon: Positive = param(1e-8, megatron="norm-epsilon")
    scalenorm_epsilon: Positive = param(1e-8)
    use_qk_layernorm: bool = param(False, megatron="qk-layernorm")
    use_bias_in_norms: bool = param(True)
    layernorm_fusion: bool = param(False)
    rmsnorm_fusion: bool = param(False)
    apply_residual_connection_post_layernorm: bool = param(
        False, origin="Meg", megatron="apply-residual-connection-post-layernorm"
    )
    rms_norm: bool = param(False, becomes={True: {"norm": "rmsnorm"}, False: {}})


class Attention(Group, origin="NeoX"):
    """What each layer attends with."""

    attention_config: list[Any] = param(derived=True)
    sparsity_config: dict[str, Any] | None = param(None)
    sparsity: Literal["none", "all", "interspersed"] = param("none")
    sliding_window_width: Count | None = param(None)
    apply_query_key_layer_scaling: bool = param(False, origin="Meg", megatron="apply-query-key-layer-scaling")
    attention_softmax_in_fp32: bool = param(False, origin="Meg", megatron="attention-softmax-in-fp32")
    use_bias_in_attn_linear: bool = param(True)
    gpt_j_residual: bool = param(False)
    gpt_j_tied: bool = param(False)


class Mlp(Group, origin="NeoX"):
    """The feed-forward half of a layer."""

    activation: Activation = param("gelu")
    use_bias_in_mlp: bool = param(True)
    use_flashattn_swiglu: bool = param(False)
    geglu: bool = param(False, becomes={True: {"activation": "geglu"}, False: {}})
    openai_gelu: bool = param(
        False,
        origin="Meg",
        megatron="openai-gelu",
        becomes={True: {"activation": "gelu", "bias_gelu_fusion": True}, False: {}},
    )
    mlp_type: Literal["regular", "llama"] = param(
        "regular",
        becomes={
            "regular": {},
            "llama": {"activation": "swiglu", "use_bias_in_mlp": False, "mlp_multiple_of": 256},
        },
    )


class Init(Group, origin="NeoX"):
    """Initial weights."""

    init_method: InitMethod = param("normal")
    output_layer_init_method: InitMethod = param("scaled_normal")
    init_method_std: Positive = param(0.02, origin="Meg", megatron="init-method-std")
    use_cpu_initialization: bool = param(False, origin="Meg", megatron="use-cpu-initialization")


class Fusion(Group, origin="Meg"):
    """Kernels that compute several operations at once, with the same result."""

    scaled_upper_triang_masked_softmax_fusion: bool = param(False, megatron="!no-masked-softmax-fusion")
    scaled_masked_softmax_fusion: bool = param(False, megatron="!no-masked-softmax-fusion")
    bias_gelu_fusion: bool = param(False, megatron="!no-bias-gelu-fusion")
    bias_dropout_fusion: bool = param(False, megatron="!no-bias-dropout-fusion")
    rope_fusion: bool = param(False, origin="NeoX", megatron="!no-rope-fusion")
    fused_kernels_build_path: str | None = param(None, origin="NeoX")
    onnx_safe: bool = param(False, megatron="onnx-safe")
