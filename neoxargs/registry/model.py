"""The shape and the layers of the GPT."""

from __future__ import annotations

from typing import Any, Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Fraction, Layers, Natural, Positive

InitMethod = Literal[
    "normal", "scaled_normal", "orthogonal", "scaled_orthogonal", "xavier_uniform", "xavier_normal", "wang_init",
    "small_init", "single_residual_scaled_normal",
]  # fmt: skip
Activation = Literal[
    "gelu", "geglu", "geglu_tanh", "relu", "softsign", "swish", "mish", "silu", "reglu", "swiglu", "bilinear", "glu",
]  # fmt: skip
_GMLP = (
    "GPT-NeoX's gMLP has no residual connection and starts only if a micro batch has at least seq_length samples, so "
    "no model of this kind was trained with it"
)


class Shape(Group, origin="Meg", effect="model"):
    """Width and depth of the transformer."""

    num_layers: Layers = param(megatron="num-layers")
    """Number of transformer layers in the model. Must be at least `pipe_parallel_size`."""

    hidden_size: Count = param(megatron="hidden-size")
    """Width of the residual stream, in elements per token. Must be a multiple of `num_attention_heads` unless
    `head_dim` is set."""

    num_attention_heads: Count = param(megatron="num-attention-heads")
    """Number of query heads per layer; each is `head_dim` wide. Must be a multiple of `model_parallel_size`."""

    head_dim: Count | None = param(None, ours=True, megatron="kv-channels")
    """Width of each head's query, key and value. Default: `hidden_size` / `num_attention_heads`. Qwen3, Gemma and
    Mistral-Nemo have heads of a different width, so their attention is wider or narrower than the residual stream."""

    num_kv_heads: Count = param(derived=True, origin="NeoX", megatron="num-query-groups")
    """Number of key and value heads per layer. Fewer than `num_attention_heads` is grouped-query attention, and 1 is
    multi-query attention. Must divide `num_attention_heads`. If not set, every query head has its own."""

    intermediate_size: Count = param(derived=True, origin="NeoX", megatron="ffn-hidden-size")
    """Width of the feed-forward layer. With a gated activation (`swiglu`, `geglu`, ...), it is the total width of the
    gate, up and down matrices, as in GPT-NeoX: each matrix has a third of this width, rounded up to `mlp_multiple_of`.
    Default: `expansion_factor` x `hidden_size` if that factor is set, otherwise 4 x `hidden_size`."""

    expansion_factor: Positive | None = param(None, origin="NeoX")
    """Size of the feed-forward layer, and of Mamba layers inside, as a multiple of `hidden_size`. Cannot be combined
    with `intermediate_size`."""

    mlp_multiple_of: Count = param(1, origin="NeoX")
    """The feed-forward width is rounded up to a multiple of this number, so that matrix kernels stay aligned."""

    exact_mlp_width: bool = param(False, ours=True)
    """Uses `intermediate_size` unchanged as the feed-forward width, as Hugging Face and Megatron-LM do: with a gated
    activation, each of the three matrices has this width, without rounding. Implied by `te_layernorm_mlp`."""

    seq_length: Count = param(megatron="seq-length")
    """Number of tokens in a training sample. Memory for attention scores grows with its square unless a flash kernel is
    used."""

    max_position_embeddings: Count = param(derived=True, megatron="max-position-embeddings")
    """Length of the longest text that the model is for, `seq_length` by default. Number of rows of a learned position
    table, which must be at least `seq_length`. With `pos_emb: rotary`, longer sequences need `rope_scaling`."""

    num_unique_layers: Count | None = param(None)
    """Number of layers with their own weights; the others reuse them, also across pipeline stages. Must divide
    `num_layers`. If not set, every layer has its own."""

    param_sharing_style: Literal["grouped", "spaced"] = param("grouped")
    """Which layers share weights when `num_unique_layers` is below `num_layers`. With 2 unique layers among 4,
    `grouped` runs them as 1, 2, 1, 2 and `spaced` as 1, 1, 2, 2."""


class Embedding(Group, origin="NeoX", effect="model"):
    """Token and position embeddings, and the output layer."""

    pos_emb: Literal["learned", "rotary", "sinusoidal", "rpe", "alibi", "none"] = param(
        "learned", megatron="position-embedding-type"
    )
    """How the positions of tokens are encoded: `learned` table, `rotary` rotation of queries and keys, fixed
    `sinusoidal` waves, T5's `rpe` bias, `alibi` slopes, or `none`."""

    rotary_pct: Fraction = param(1.0, megatron="rotary-percent")
    """Fraction of each head's dimensions that `pos_emb: rotary` rotates; 1.0 rotates all of them. Pythia uses 0.25."""

    rotary_emb_base: Count = param(10000, megatron="rotary-base")
    """Base of the geometric series of rotary wavelengths; long-context models use larger bases."""

    rope_local_base_freq: Count | None = param(None, ours=True)
    """Base of the rotary wavelengths in layers with a sliding window, whose positions `rope_scaling` does not change,
    as in Gemma 3. If not set, all layers use `rotary_emb_base`."""

    rotary_save_freqs_buffer: bool = param(
        False, effect="none", no_effect_reason="the frequencies are always computed and never saved"
    )
    """Stores the rotary frequencies in checkpoints, for programs that expect them there; they can be recomputed."""

    rpe_num_buckets: Count = param(32, megatron="relative-attention-num-buckets")
    """Number of buckets into which `pos_emb: rpe` sorts distances; each has one learned bias per head, the same in all
    layers. Half of the buckets hold a single distance each."""

    rpe_max_distance: Count = param(128, megatron="relative-attention-max-distance")
    """Distance in tokens from which `pos_emb: rpe` puts all tokens into the last bucket; below it, buckets widen
    logarithmically."""

    opt_pos_emb_offset: Natural = param(0)
    """Number of rows skipped at the start of the learned position table, so that position 0 reads row
    `opt_pos_emb_offset`. OPT's weights need 2."""

    embedding_multiplier: Positive = param(1.0, ours=True)
    """Factor on the token embeddings that the first layer reads; a tied output layer uses the embeddings without this
    factor. Gemma uses the square root of `hidden_size`."""

    final_logit_softcapping: Positive | None = param(None, ours=True)
    """Limits the logits smoothly to between -c and c, where c is this value: c x tanh(logits / c). Gemma 2: 30."""

    no_weight_tying: bool = param(False, megatron="untie-embeddings-and-output-weights")
    """Gives the output layer a matrix of its own instead of sharing the token embedding's. Adds `hidden_size` x
    `padded_vocab_size` parameters."""

    make_vocab_size_divisible_by: Count = param(128, origin="Meg", megatron="make-vocab-size-divisible-by")
    """The vocabulary is padded to a multiple of this number times `model_parallel_size`, so that every tensor parallel
    rank holds the same number of aligned rows."""

    padded_vocab_size: Count = param(derived=True, origin="Meg", megatron="padded-vocab-size")
    """Number of rows of the embedding after padding. Computed from the tokenizer, `make_vocab_size_divisible_by` and
    `model_parallel_size`; set it to fix the size independently of them."""

    softmax_over_padding: bool = param(False, ours=True)
    """Includes the padding rows of the vocabulary in the softmax of the loss, as GPT-NeoX and Megatron-LM do;
    otherwise, these rows have probability 0. Set it to `true` to continue a run of GPT-NeoX or Megatron-LM. The loss
    then depends on `padded_vocab_size`. Generated text never contains padding tokens."""

    output_layer_parallelism: Literal["column", "row"] = param(
        "column", effect="none", no_effect_reason="the output layer is always sharded by columns, with the same result"
    )
    """How tensor parallel ranks divide the output layer: `column` gives each a part of the vocabulary. `row`, found in
    files from before May 2023, gives the same result."""

    sinusoidal_pos_emb: bool = param(False, replaced_by={True: {"pos_emb": "sinusoidal"}, False: {}})
    """Retired in March 2021: use `pos_emb: sinusoidal`."""

    rpe: bool = param(False, replaced_by={True: {"pos_emb": "rpe"}, False: {}})
    """Retired in March 2021: use `pos_emb: rpe`."""

    rpe_causal: bool = param(False)
    """Uses all buckets of `pos_emb: rpe` for past tokens; false reserves half of them for later tokens, which a GPT
    never attends to. GPT-NeoX removed it in March 2021; in a dialect from then on, the default is true."""


class Norm(Group, origin="NeoX", effect="model"):
    """Normalisation layers."""

    norm: Literal["layernorm", "rmsnorm", "non_parametric_layernorm", "scalenorm", "te_rmsnorm", "te_layernorm"] = (
        param("layernorm", megatron="normalization")
    )
    """Type of the norms: `layernorm`, `rmsnorm` (no mean, no bias), `non_parametric_layernorm` (nothing learned),
    `scalenorm` (one learned scale). Transformer Engine's `te_layernorm` and `te_rmsnorm` equal the first two."""

    layernorm_epsilon: Positive = param(1e-5, origin="Meg", megatron="norm-epsilon")
    """Added to the variance by `norm: layernorm` and `non_parametric_layernorm` before the square root, against
    division by zero."""

    rms_norm_epsilon: Positive = param(1e-8, megatron="norm-epsilon")
    """Added to the mean square by `norm: rmsnorm`. Llama's weights expect 1e-5 or 1e-6."""

    rms_norm_epsilon_under_root: bool = param(derived=True, ours=True)
    """Whether `norm: rmsnorm` adds `rms_norm_epsilon` inside the square root (to the mean square), as is usual today,
    or outside (to the root), as in GPT-NeoX until May 2025 without `rmsnorm_fusion`. If not set, it follows the
    dialect. An epsilon of 1e-7 or less is always added inside, because the difference is then small."""

    scalenorm_epsilon: Positive = param(1e-8)
    """Lower bound of the vector length that `norm: scalenorm` divides by."""

    norm_placement: Literal["before", "after", "both"] = param("before", ours=True)
    """Position of the norms in each layer: `before` normalises the inputs of attention and feed-forward layer; `after`
    (OLMo 2) normalises their outputs before these are added to the residual stream; `both` (Gemma 2 and 3) normalises
    inputs and outputs."""

    apply_layernorm_1p: bool = param(False, origin="Meg", ours=True, megatron="apply-layernorm-1p")
    """With `norm: layernorm` or `rmsnorm`, scales by 1 plus the weight, which is initially 0, as in Gemma."""

    use_qk_layernorm: bool = param(False, megatron="qk-layernorm")
    """Normalises each head's queries and keys by a `norm` of their own before their product (and before rotary
    positions), which keeps attention scores bounded at high learning rates. All heads of a layer share its weights."""

    qk_layernorm_scope: Literal["head", "all_heads"] = param("head", ours=True)
    """Which elements `use_qk_layernorm` normalises together: those of each `head`, or those of `all_heads`, separately
    for queries and keys (OLMo 2). With `all_heads`, which needs `norm: rmsnorm`, each head has its own weights."""

    use_bias_in_norms: bool = param(True)
    """Whether `norm: layernorm` learns a bias in addition to its scale."""

    layernorm_fusion: bool = param(
        False, effect="none", no_effect_reason="torch computes it in its own kernels, with the same result"
    )
    """Runs LayerNorm as one fused kernel. The result is the same."""

    rmsnorm_fusion: bool = param(
        False, effect="none", no_effect_reason="torch computes it in its own kernels, with the same result"
    )
    """Runs RMSNorm as one fused kernel. The result is the same."""

    apply_residual_connection_post_layernorm: bool = param(
        False, origin="Meg", megatron="apply-residual-connection-post-layernorm"
    )
    """Takes the residual from the output of a layer's norm instead of its input, as in the original BERT. Cannot be
    combined with `gpt_j_residual`."""

    rms_norm: bool = param(False, replaced_by={True: {"norm": "rmsnorm"}, False: {}})
    """Retired in March 2021: use `norm: rmsnorm`."""


class Attention(Group, origin="NeoX", effect="model"):
    """The attention of each layer."""

    attention_config: list[Any] = param(derived=True, refused={"gmlp": _GMLP, "amlp": _GMLP})
    """Kind of attention in each layer, as a list of patterns, each with its number of repetitions: `[[[global], 12]]`,
    `[[[local, global], all]]`. Kinds: `global`, `flash`, `local`, the block-sparse `sparse_variable`, `sparse_fixed`,
    `bigbird`, `bslongformer`, and `gmlp`, `amlp`, `mamba`, `rwkv`. If not set, every layer is `global`. `flash` layers
    differ from `global` ones only in that they always use torch's fused kernels, even with
    `attention_softmax_in_fp32`."""

    attention_backend: Literal["auto", "sdpa", "flex", "varlen", "unfused"] = param("auto", origin="Meg", ours=True)
    """What computes attention in training. `sdpa`: torch's fused kernels (FlashAttention, cuDNN, memory-efficient);
    other masks than the causal one, and position biases, are tensors of all pairs of tokens. `flex`: torch's
    flex_attention, which computes these masks and biases and skips blocks that do not attend; on GPUs from the A100 on,
    without dropout. `varlen`: torch's varlen_attn, which takes documents as separate sequences, and can have windows;
    in fp16 or bf16, on GPUs from the A100 on, with torch 2.13 or newer, without dropout; the host waits once per micro
    batch for the number of documents. `unfused`: separate steps as in Megatron, which store all scores, with the
    softmax in fp32. `auto`: `sdpa` where the mask is causal, `unfused` where `attention_softmax_in_fp32` asks for it,
    otherwise `flex`, or where that cannot `varlen`, `sdpa`, or, for bounded scores, `unfused`. A named kernel computes
    every layer, or the run is refused; only with `unfused`, `apply_query_key_layer_scaling` still has an effect. A ring
    (`context_parallel_style`) has `flex` on GPUs and `unfused` on CPUs, where it stores no scores. The
    choice is in the log, and in `deepy explain attention_backend my.yml`."""

    sparsity_config: dict[str, Any] | None = param(None)
    """Settings of the block-sparse kinds in `attention_config`, such as `block` (tokens per block) and
    `num_local_blocks`. The keys are those of the `sparse_attention` section; that section can be set instead.
    On GPUs that support torch's flex_attention, blocks that are not read are skipped; elsewhere, they are masked."""

    sparsity: Literal["none", "all", "interspersed"] = param("none")
    """Retired in May 2021: use `attention_config`. `all` makes every layer block-sparse, `interspersed` layers 1, 3, 5,
    ... counted from 0, `none` no layer. The kind of these layers is `sparse_variable`, unless `sparse_attention.mode`
    selects a different one."""

    sliding_window_width: Count | None = param(None)
    """Each token sees itself and at most this many tokens before it, in every layer unless `window_attn_skip_freq` is
    set. If not set, it sees the whole sequence before it."""

    window_attn_skip_freq: Count | list[int] | None = param(
        None, origin="Meg", ours=True, megatron="window-attn-skip-freq"
    )
    """Which layers have the window of `sliding_window_width`. A number N: all layers except every N-th, which sees the
    whole sequence (2 in Gemma 2, 6 in Gemma 3). A list with a number for each layer: 1 with the window, 0 without."""

    apply_query_key_layer_scaling: bool = param(False, origin="Meg", megatron="apply-query-key-layer-scaling")
    """Divides queries by the layer's number before the product with the keys, and multiplies the scores by it in fp32.
    Avoids fp16 overflow in deep models. Implies `attention_softmax_in_fp32`, and has an effect only where that
    parameter has one."""

    attention_softmax_in_fp32: bool = param(False, origin="Meg", megatron="attention-softmax-in-fp32")
    """In fp16 and bf16, computes attention step by step as Megatron does: scores in the model's precision, mask and
    softmax in fp32. Otherwise, torch's fused kernels are used. They compute the scores in fp32 and never store them, so
    they are just as accurate, run faster, and need less memory. `flash` layers always use the fused kernels."""

    softmax_scale: Positive | None = param(None, ours=True)
    """Factor on the products of queries and keys before the softmax. Default: 1 / sqrt(`head_dim`). In Hugging Face's
    Gemma models, it is 1 / sqrt(query_pre_attn_scalar)."""

    attn_logit_softcapping: Positive | None = param(None, ours=True)
    """Limits attention scores smoothly to the range from -c to c before the mask, where c is this value: c x
    tanh(scores / c). Gemma 2 uses 50. torch's flash kernels do not support this: GPUs use flex_attention if it is
    available; otherwise, and on CPUs, the scores are stored."""

    use_bias_in_attn_linear: bool = param(True)
    """Whether the query, key, value and output projections of attention have biases; Llama's have none."""

    add_qkv_bias: bool = param(False, origin="Meg", ours=True, megatron="add-qkv-bias")
    """Gives the query, key and value projections biases even if `use_bias_in_attn_linear` is off; the output projection
    then has none, as in Qwen2."""

    gpt_j_residual: bool = param(False)
    """Computes attention and feed-forward layer from the same input and adds both results to the residual stream, as
    GPT-J does, instead of computing one after the other."""

    gpt_j_tied: bool = param(False)
    """With `gpt_j_residual`, lets attention and feed-forward layer share one norm instead of having one each."""


class Mlp(Group, origin="NeoX", effect="model"):
    """The feed-forward part of each layer."""

    activation: Activation = param("gelu")
    """Nonlinearity of the feed-forward layer. `geglu`, `reglu`, `swiglu`, `bilinear` and `glu` are gated: half of the
    first projection multiplies the other half. `geglu_tanh` is `geglu` with the tanh approximation of GELU, as in
    Gemma. `swish` and `silu` are the same function."""

    use_bias_in_mlp: bool = param(True)
    """Whether the two projections of the feed-forward layer have biases; Llama's have none."""

    use_flashattn_swiglu: bool = param(
        False, effect="none", no_effect_reason="torch computes SwiGLU instead, with the same result"
    )
    """Runs `activation: swiglu` through the fused kernel of the flash-attn package. The result is the same."""

    geglu: bool = param(False, replaced_by={True: {"activation": "geglu"}, False: {}})
    """Retired in May 2021: use `activation: geglu`."""

    openai_gelu: bool = param(
        False,
        origin="Meg",
        megatron="openai-gelu",
        replaced_by={True: {"activation": "gelu", "bias_gelu_fusion": True}, False: {}},
    )
    """Retired in May 2021: use `activation: gelu` with `bias_gelu_fusion: true`, which computes the same tanh
    approximation."""

    mlp_type: Literal["regular", "llama"] = param(
        "regular",
        replaced_by={
            "regular": {},
            "llama": {"expansion_factor": 8.0, "use_bias_in_mlp": False, "mlp_multiple_of": 256},
        },
    )
    """Retired in September 2024. `llama` was a gated layer without biases, of width 8/3 `hidden_size`. In place of
    `activation: silu`, use `activation: swiglu`, `use_bias_in_mlp: false`, `expansion_factor: 8` and `mlp_multiple_of:
    256`."""


class Init(Group, origin="NeoX", effect="model"):
    """Initial weights."""

    init_method: InitMethod = param("normal")
    """Distribution of the initial weights, except those that `output_layer_init_method` sets. `normal` has the standard
    deviation `init_method_std`, `small_init` sqrt(2 / (5 x `hidden_size`)); `orthogonal` and Xavier ignore both."""

    output_layer_init_method: InitMethod = param("scaled_normal")
    """Distribution of the weights that write to the residual (attention output, second feed-forward matrix).
    `scaled_normal` divides the standard deviation by sqrt(2 x `num_layers`), `wang_init` uses 2 / (`num_layers` x
    sqrt(`hidden_size`))."""

    init_method_std: Positive = param(0.02, origin="Meg", megatron="init-method-std")
    """Standard deviation of `normal` and `scaled_normal` initial weights; their mean is 0."""

    use_cpu_initialization: bool = param(False, origin="Meg", megatron="use-cpu-initialization")
    """Draws initial weights on the CPU even if the model is on a GPU. This is slower, but all runs then start from the
    same weights, on CPUs and on GPUs of any type. Otherwise, GPUs with different numbers of multiprocessors draw
    different weights from the same seed; on GPUs of one type, all layouts start from the same weights."""


class Fusion(Group, origin="Meg", effect="model"):
    """Kernels that compute several operations at once."""

    scaled_upper_triang_masked_softmax_fusion: bool = param(
        False, megatron="!no-masked-softmax-fusion", receiver_default=True
    )
    """Keeps torch's fused attention kernel in layers whose only mask is the causal one, even if
    `attention_softmax_in_fp32` asks for separate steps; the kernel's softmax is in fp32. Without
    `attention_softmax_in_fp32`, the kernel is always used."""

    scaled_masked_softmax_fusion: bool = param(False, megatron="!no-masked-softmax-fusion", receiver_default=True)
    """Like `scaled_upper_triang_masked_softmax_fusion`, but for layers with a different mask or a bias: sparse layers,
    `reset_attention_mask`, `pos_emb: rpe` and `alibi`."""

    bias_gelu_fusion: bool = param(False, megatron="!no-bias-gelu-fusion", receiver_default=True)
    """Computes `activation: gelu` in its tanh approximation, as GPT-NeoX's fused kernel does and models trained with it
    expect. There is nothing to fuse: torch adds the bias inside the matrix product."""

    bias_dropout_fusion: bool = param(False, megatron="!no-bias-dropout-fusion", receiver_default=True)
    """Computes dropout and the residual addition in one kernel, which torch.compile generates on a GPU if
    `hidden_dropout` is above 0; its dropout masks differ from those of torch's own kernels. On a CPU, or without Triton
    and a C compiler, two torch kernels are used. The bias is always added inside the matrix product."""

    compile_layers: bool = param(False, origin="NeoX", ours=True)
    """Compiles each transformer layer with torch.compile, which computes norms, rotary embeddings, activation functions
    and additions in fewer kernels; on GPUs, without tensor parallelism, the cross entropy too. The first steps take
    minutes longer. Losses are equal except for rounding; dropout masks differ. A run begins only if the compiled layers
    have the gradients of uncompiled ones (not compared with dropout, experts or ZeRO stage 3). Needs Triton and a C
    compiler on GPUs, a C++ compiler on CPUs. What tensor parallel ranks communicate is in the compiled layers, which no
    GPU has run yet; `attention_dropout`, and with `sequence_parallel` `hidden_dropout`, divides these into parts."""

    rope_fusion: bool = param(False, origin="NeoX", megatron="!no-rope-fusion", receiver_default=True)
    """With `pos_emb: rotary`, rotates queries in one kernel and keys in another; torch.compile generates both on a GPU.
    Results are equal except for rounding. On a CPU, or without Triton and a C compiler, torch's own kernels are used:
    about five for queries and five for keys."""

    fused_kernels_build_path: str | None = param(
        None, origin="NeoX", effect="none", no_effect_reason="train.py has no CUDA kernels of its own to compile"
    )
    """Folder in which GPT-NeoX compiles its CUDA kernels. Default: the folder of the sources."""

    onnx_safe: bool = param(False)
    """Computes GELU with erf, so that the model can be exported to ONNX versions without that operation (before opset
    20). Cannot be combined with `bias_gelu_fusion`."""
