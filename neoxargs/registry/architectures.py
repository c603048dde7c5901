"""Architectures other than a plain GPT."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural, Positive

_TORCH_SCAN = "torch computes these layers in chunks of the sequence, with the same result"


class Mamba(Group, origin="NeoX", effect="model"):
    """Mamba state space layers (`attention_config: [[[mamba], all]]`)."""

    mamba_inner_size: Count = param(derived=True, ours=True)
    """Inner width of Mamba layers, between their two projections. Must be a multiple of `model_parallel_size`.
    Default: `intermediate_size` if it is set, otherwise `expansion_factor` x `hidden_size`, with a factor of 2 if that
    is not set either, as in GPT-NeoX."""

    mamba_selective_scan_fusion: bool = param(False)
    """On GPUs, runs the selective scan of Mamba layers as one kernel of mamba-ssm, if this package is installed and its
    results on this GPU are those of torch; the log says which of the two runs and why. Equal except for rounding. No
    GPU has run it yet."""

    mamba_causal_conv_fusion: bool = param(False)
    """On GPUs, runs the short convolution of Mamba layers as one kernel of causal-conv1d, under the conditions of
    `mamba_selective_scan_fusion`."""

    mamba_inner_func_fusion: bool = param(False, effect="none", no_effect_reason=_TORCH_SCAN)
    """Runs everything inside a Mamba layer as one kernel of the mamba-ssm package. The result is the same."""

    mamba_selective_fp32_params: bool = param(
        True,
        effect="none",
        no_effect_reason="the optimizer has an fp32 copy of every weight, and the scan always computes in fp32",
    )
    """Keeps the state matrix A and the skip weights D of Mamba layers in fp32, to avoid instability in half precision.
    """

    mamba_use_bias_in_conv: bool = param(True)
    """Whether the short convolution of Mamba layers has a bias."""

    mamba_use_bias_in_linears: bool = param(False)
    """Whether the input and output projections of Mamba layers, and the projection that computes what the scan reads,
    have biases."""

    mamba_use_bias_in_x_proj: bool = param(True, ours=True)
    """Whether `mamba_use_bias_in_linears` includes the projection that computes what the scan reads, as in GPT-NeoX. In
    Hugging Face's Mamba, this projection never has a bias."""


class Rwkv(Group, origin="NeoX", effect="model"):
    """RWKV-6 layers (`attention_config: [[[rwkv], all]]`; Peng et al. 2024, arXiv:2404.05892)."""

    dim_att: Count | None = param(None, derived=True)
    """Width of the time mixing of RWKV layers. Default: `hidden_size`."""

    head_size: Count | None = param(None, derived=True)
    """Width of each head in RWKV layers: `dim_att` / `num_attention_heads`."""

    ffn_dim: Count | None = param(None, derived=True)
    """Width of the channel mixing of RWKV layers. Default: 3.5 x `hidden_size`, or `intermediate_size` if that or
    `expansion_factor` is set, rounded down to a multiple of 32."""

    rwkv_wkv_fusion: bool = param(False, ours=True)
    """On GPUs, runs the linear attention of RWKV layers as kernels of flash-linear-attention, under the conditions of
    `mamba_selective_scan_fusion`."""


class Gmlp(
    Group,
    origin="NeoX",
    effect="none",
    no_effect_reason="it is used only by `amlp` layers, which train.py does not support",
):
    """gMLP layers (`attention_config: [[[gmlp], all]]` or `amlp`)."""

    gmlp_attn_dim: Count = param(64)
    """Width of the small attention head inside `amlp` layers."""


_SAME_RESULT = "torch computes these layers, with the same result"


class TransformerEngine(
    Group,
    origin="NeoX",
    effect="none",
    no_effect_reason="it is used only by fp8 layers of Transformer Engine, which train.py does not support",
):
    """NVIDIA Transformer Engine: its layers, which train.py computes with torch, and its fp8 settings."""

    te_columnparallel: bool = param(False, effect="none", no_effect_reason=_SAME_RESULT)
    """Uses Transformer Engine for the tensor parallel layers that split their output. The result is the same."""

    te_rowparallel: bool = param(False, effect="none", no_effect_reason=_SAME_RESULT)
    """Uses Transformer Engine for the tensor parallel layers that split their input. The result is the same."""

    te_layernorm_mlp: bool = param(False, effect="model")
    """Computes the feed-forward layer and the norm before it like Transformer Engine's LayerNormMLP: the width is
    exactly `intermediate_size` (see `exact_mlp_width`), the layer has biases, its GELU is the tanh approximation, and
    the norm's epsilon is 1e-5 (`layernorm`) or 1e-8 (`rmsnorm`)."""

    te_mha: bool = param(False, effect="model")
    """Computes attention like Transformer Engine's MultiheadAttention: dense causal attention with biases in all
    projections. `use_bias_in_attn_linear: false` is then an error."""

    te_fp8_format: Literal["e4m3", "hybrid"] = param("hybrid", megatron="fp8-format")
    """Format of fp8 numbers: `e4m3` everywhere, or `hybrid`, which uses e5m2 for gradients because its range is
    wider."""

    te_fp8_wgrad: bool = param(True, megatron="!no-fp8-wgrad")
    """Whether weight gradients of fp8 layers are computed in fp8; false uses the higher precision."""

    te_fp8_amax_history_len: Count = param(1, megatron="fp8-amax-history-len")
    """Number of recent steps whose largest magnitudes (amax) are kept for choosing the fp8 scaling factor."""

    te_fp8_amax_compute_algo: Literal["most_recent", "max"] = param("most_recent", megatron="fp8-amax-compute-algo")
    """Which of the recorded magnitudes sets the fp8 scaling factor: the `most_recent` or the `max`."""

    te_fp8_margin: Natural = param(0, megatron="fp8-margin")
    """Safety margin in powers of two: how far the fp8 scaling factor stays below the largest one that fits."""

    te_fp8_mha: bool = param(
        False,
        effect="not built",
        refused="GPT-NeoX's code for fp8 refers to names that do not exist, so it can never have run",
    )
    """Also runs the dot products of Transformer Engine's attention in fp8."""


class SoftPrompt(Group, origin="NeoX", effect="model", section="soft_prompt_tuning"):
    """Soft prompt tuning: training a prefix of embeddings for a frozen model."""

    enabled: bool = param(False)
    """Freezes the model and trains only a prefix of embeddings in front of every sequence (Lester et al. 2021,
    arXiv:2104.08691). Set `base_checkpoint` to the model's checkpoint. The run's own checkpoints contain only the
    prefix, and record which base checkpoint it belongs to; generate.py loads both."""

    num_tokens: Count = param(10, aliases="n_tokens")
    """Number of embeddings in the prefix. They count towards `seq_length`: the same number of tokens is cut off at the
    end of every sample."""

    init_string: str = param("")
    """Text whose token embeddings initialise the prefix, repeated or cut to `num_tokens`. Empty: random values."""

    init_range: Positive = param(0.5)
    """Random initial values are drawn uniformly from the range between minus and plus this number."""
