"""Architectures other than a plain GPT, and what only they read."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural, NonNegative, Positive


class Mamba(
    Group, origin="NeoX", effect="none", no_effect_reason="only Mamba layers read it, which train.py does not have"
):
    """Mamba state space layers (`attention_config: [[[mamba], all]]`)."""

    mamba_selective_scan_fusion: bool = param(False)
    """Runs the selective scan of Mamba layers as one CUDA kernel of the mamba-ssm package instead of step by step."""

    mamba_causal_conv_fusion: bool = param(False)
    """Runs the short convolution of Mamba layers through the causal-conv1d package."""

    mamba_inner_func_fusion: bool = param(False)
    """Runs everything inside a Mamba layer as one kernel; takes precedence over the two other Mamba fusions."""

    mamba_selective_fp32_params: bool = param(True)
    """Keeps the state matrix A and the skip weights D of Mamba layers in fp32, against instability in half precision.
    """

    mamba_use_bias_in_conv: bool = param(True)
    """Whether the short convolution of Mamba layers has a bias."""

    mamba_use_bias_in_linears: bool = param(False)
    """Whether the input and output projections of Mamba layers have biases."""


class Rwkv(
    Group, origin="NeoX", effect="none", no_effect_reason="only RWKV layers read it, which train.py does not have"
):
    """RWKV layers (`attention_config: [[[rwkv], all]]`)."""

    dim_att: Count | None = param(None)
    """Width of RWKV's time-mixing block. Left out: `hidden_size`."""

    head_size: Count | None = param(None)
    """Width of one RWKV head; must divide `dim_att`. Left out: 64."""

    ffn_dim: Count | None = param(None)
    """Width of RWKV's channel-mixing block. Left out: 3.5 x `hidden_size`, rounded down to a multiple of 32."""


class Gmlp(
    Group, origin="NeoX", effect="none", no_effect_reason="only `amlp` layers read it, which train.py does not have"
):
    """gMLP layers (`attention_config: [[[gmlp], all]]` or `amlp`)."""

    gmlp_attn_dim: Count = param(64)
    """Width of the small attention head inside `amlp` layers."""


class Moe(
    Group,
    origin="NeoX",
    effect="none",
    no_effect_reason="only a mixture of experts reads it, which train.py does not have",
):
    """Mixture of experts."""

    moe_num_experts: Count = param(1, megatron="num-experts", aliases="num_experts", effect="not built")
    """Experts per mixture-of-experts layer. 1 leaves the feed-forward layers dense."""

    moe_expert_interval: Count = param(1, megatron="moe-layer-freq", aliases="expert_interval")
    """Every how many layers the feed-forward layer is a mixture of experts: 1 all, 2 every second one."""

    moe_top_k: Count = param(1, megatron="moe-router-topk")
    """Experts that process each token."""

    moe_router_type: Literal["sinkhorn", "topk"] = param("sinkhorn")
    """How tokens choose experts: `sinkhorn` balances the load while training by matching tokens and experts, `topk`
    takes the highest probabilities."""

    moe_lbl_in_fp32: bool = param(False)
    """Computes the load-balancing loss of the experts in fp32."""

    moe_jitter_eps: NonNegative | None = param(None, megatron="moe-input-jitter-eps")
    """Width of the random factor, from 1 - eps to 1 + eps, on the router's input while training. Left out, there is
    none."""


class TransformerEngine(
    Group,
    origin="NeoX",
    effect="none",
    no_effect_reason="only fp8 layers of Transformer Engine read it, which train.py does not have",
):
    """NVIDIA Transformer Engine layers and fp8."""

    te_columnparallel: bool = param(False, effect="not built")
    """Uses Transformer Engine for the tensor parallel layers that split their output."""

    te_rowparallel: bool = param(False, effect="not built")
    """Uses Transformer Engine for the tensor parallel layers that split their input."""

    te_layernorm_mlp: bool = param(False, effect="not built")
    """Uses Transformer Engine's combined norm and feed-forward layer."""

    te_mha: bool = param(False, effect="not built")
    """Uses Transformer Engine's multi-head attention."""

    te_fp8_format: Literal["e4m3", "hybrid"] = param("hybrid", megatron="fp8-format")
    """Number format of fp8 layers: `e4m3` everywhere, or `hybrid` with e5m2 for gradients, whose range is wider."""

    te_fp8_wgrad: bool = param(True, megatron="!no-fp8-wgrad")
    """Whether weight gradients of fp8 layers are computed in fp8; false uses the higher precision."""

    te_fp8_amax_history_len: Count = param(1, megatron="fp8-amax-history-len")
    """Steps whose largest magnitudes are remembered for choosing the fp8 scaling factor."""

    te_fp8_amax_compute_algo: Literal["most_recent", "max"] = param("most_recent", megatron="fp8-amax-compute-algo")
    """Which of the remembered magnitudes sets the fp8 scaling factor: the `most_recent` or the `max`."""

    te_fp8_margin: Natural = param(0, megatron="fp8-margin")
    """Powers of two that the fp8 scaling factor stays below the largest that would fit."""

    te_fp8_mha: bool = param(False, effect="not built")
    """Also runs the dot products of Transformer Engine's attention in fp8."""


class SoftPrompt(
    Group,
    origin="NeoX",
    effect="none",
    no_effect_reason="only soft_prompt_tuning reads it, which train.py does not do",
    section="soft_prompt_tuning",
):
    """A trained prefix in front of a frozen model."""

    enabled: bool = param(False, effect="not built")
    """Freezes the model and trains only a prefix of embeddings in front of every sequence."""

    num_tokens: Count = param(10)
    """Embeddings in the trained prefix; they take places of `seq_length`."""

    init_string: str = param("")
    """Text whose embeddings the prefix starts from, repeated or cut to `num_tokens`. Empty: random."""

    init_range: Positive = param(0.5)
    """Random prefixes start uniformly between minus and plus this number."""


class Mup(Group, origin="NeoX", effect="model"):
    """Maximal update parametrisation: hyperparameters that carry over between widths."""

    use_mup: bool = param(False, megatron="use-mup")
    """Trains with the maximal update parametrisation, in which a learning rate tuned on a narrow model serves a wide
    one (Yang et al. 2022, arXiv:2203.03466). Needs `base_shapes_file`, Adam, AdamW or SGD, and a `normal` or
    `scaled_normal` initialisation. The reported learning rate is that of what does not grow."""

    coord_check: bool = param(False, effect="run")
    """Instead of training, measures how large the layers' outputs are at three widths over a few steps, to see whether
    `use_mup` keeps them: prints them and writes coord_check.json in `run_dir`. Each width is `mup_width_scale` times
    the one before. Without `base_shapes_file`, the narrowest is the base."""

    save_base_shapes: bool = param(False, effect="run")
    """Instead of training, writes to `base_shapes_file` the shapes of this model's weights, and which of their
    dimensions grow when the model is `mup_width_scale` times as wide. One file serves every layout."""

    base_shapes_file: str | None = param(None)
    """File of the shapes that muP scales from, in the format of the package mup; `save_base_shapes` writes it."""

    mup_init_scale: Positive = param(1.0)
    """Factor on the standard deviation of initial weights under muP."""

    mup_attn_temp: Positive = param(1.0)
    """Attention scores are divided by it under muP, and by the head's width instead of its square root."""

    mup_output_temp: Positive = param(1.0)
    """Logits are divided by it under muP, and by how many times wider than the base the model is."""

    mup_embedding_mult: Positive = param(1.0, megatron="mup-embedding-mult")
    """Factor on the sum of token and position embeddings under muP."""

    mup_rp_embedding_mult: Positive = param(1.0)
    """Factor on position embeddings under muP, learned, sinusoidal or of `pos_emb: rpe`."""

    mup_width_scale: Count = param(2, effect="run")
    """How many times as wide the next wider model of `save_base_shapes` and `coord_check` is; at least 2. Hidden and
    feed-forward size grow, the number of heads does not."""
