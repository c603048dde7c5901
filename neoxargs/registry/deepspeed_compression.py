"""Compression: DeepSpeed's sections `compression_training` and `weight_quantization`, for quantisation, pruning and
layer reduction.

Each technique of `compression_training` has `shared_parameters`, declared here, and `different_groups`: name ->
{params, modules, related_modules}, where `params` are the technique's own and `modules` are patterns of module names.
"""

from __future__ import annotations

from typing import Any, Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Fraction, Natural, NonNegative, Positive

_NOT_COMPRESSED = (
    "DeepSpeed compresses only the torch.nn.Linear layers of a model for which the script calls init_compression, "
    "which neither deepy nor GPT-NeoX does"
)


class LayerReduction(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with compression_training, which train.py does not support",
    section="compression_training.layer_reduction",
    always_sent=("enabled",),
):
    """Initialise a shallower model with some of the layers of a deeper one."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=_NOT_COMPRESSED,
    )
    """Turn this section on."""

    keep_number_layer: Count | None = param(None)
    """Number of layers that the shallower copy of the model keeps."""

    module_name_prefix: str | None = param(None)
    """Name of the list of layers in the model, such as `bert.encoder.layer`."""

    teacher_layer: list[Natural] | None = param(None)
    """Indices of the deeper model's layers to take, counted from 0."""

    other_module_name: list[str] | None = param(None)
    """Names of modules to take besides the layers."""


class QuantizedWeights(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with compression_training, which train.py does not support",
    section="compression_training.weight_quantization",
    always_sent=("different_groups",),
):
    """Low-bit weights."""

    different_groups: dict[str, Any] = param({})
    """Groups of modules, each with its start_bits, target_bits and quantization_period."""


class QuantizedWeightsShared(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with compression_training, which train.py does not support",
    section="compression_training.weight_quantization.shared_parameters",
):
    """Settings common to all quantised weights."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=_NOT_COMPRESSED,
    )
    """Quantise weights."""

    quantizer_kernel: bool = param(False)
    """Use the compiled kernel when weights are quantised in the optimizer step."""

    schedule_offset: Natural = param(0)
    """Step at which the quantisation of weights starts."""

    quantize_groups: Count = param(1)
    """Number of groups of weights in each matrix; each group has its own range."""

    quantize_verbose: bool = param(False)
    """Print progress."""

    quantization_type: Literal["symmetric", "asymmetric"] = param("symmetric")
    """Whether the range of values is symmetric around 0."""

    quantize_weight_in_forward: bool = param(False)
    """Quantise in every forward pass instead of in the optimizer step; fp32 needs this."""

    rounding: Literal["nearest", "stochastic"] = param("nearest")
    """Round to the nearest value, or stochastically."""


class MixedQuantize(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with compression_training, which train.py does not support",
    section="compression_training.weight_quantization.shared_parameters.fp16_mixed_quantize",
):
    """Blend fp16 and quantised weights at the start."""

    enabled: bool = param(False)
    """Turn this section on."""

    quantize_change_ratio: Fraction = param(0.001)
    """Increase of the quantised fraction per step."""


class QuantizedActivations(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with compression_training, which train.py does not support",
    section="compression_training.activation_quantization",
    always_sent=("different_groups",),
):
    """Low-bit activations."""

    different_groups: dict[str, Any] = param({})
    """Groups of modules, each with its number of bits."""


class QuantizedActivationsShared(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with compression_training, which train.py does not support",
    section="compression_training.activation_quantization.shared_parameters",
):
    """Settings common to all quantised activations."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=_NOT_COMPRESSED,
    )
    """Quantise activations."""

    quantization_type: Literal["symmetric", "asymmetric"] = param("symmetric")
    """Whether the range of values is symmetric around 0."""

    range_calibration: Literal["dynamic", "static"] = param("dynamic")
    """`dynamic` computes the range of values for each batch; `static` keeps a running range."""

    schedule_offset: Natural = param(1000)
    """Step at which the quantisation of activations starts."""


class SparsePruning(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with compression_training, which train.py does not support",
    section="compression_training.sparse_pruning",
    always_sent=("different_groups",),
):
    """Set individual weights to zero."""

    different_groups: dict[str, Any] = param({})
    """Groups of modules, each with its dense_ratio, the fraction of weights to keep."""


class SparsePruningShared(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with compression_training, which train.py does not support",
    section="compression_training.sparse_pruning.shared_parameters",
):
    """Settings common to all pruned weights."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=_NOT_COMPRESSED,
    )
    """Prune individual weights."""

    method: Literal["l1", "topk", "snip_momentum"] = param("l1")
    """`l1` keeps the largest weights, `topk` learns which weights to keep, and `snip_momentum` chooses by weight times
    gradient."""

    schedule_offset: Natural = param(1000)
    """Step at which sparse pruning starts."""

    schedule_offset_end: Natural = param(1000)
    """snip_momentum: step at which the target is reached. If not set, it is `schedule_offset`."""

    schedule_offset_stride: Count = param(1)
    """snip_momentum: number of steps between two prunings."""

    block_pattern: str = param("4x1")
    """snip_momentum: shape of the blocks that are set to zero together, or `N:M` to set N of every M
    weights to zero."""

    dense_ratio: Fraction = param(0.1)
    """snip_momentum: fraction of weights to keep, above 0 and below 1."""

    excluded_modules: list[str] = param([])
    """snip_momentum: name patterns of modules that are not pruned."""


class RowPruning(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with compression_training, which train.py does not support",
    section="compression_training.row_pruning",
    always_sent=("different_groups",),
):
    """Remove rows of matrices, that is, neurons of a layer."""

    different_groups: dict[str, Any] = param({})
    """Groups of modules, each with its dense_ratio (the fraction of rows to keep) and the modules that read its
    output."""


class RowPruningShared(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with compression_training, which train.py does not support",
    section="compression_training.row_pruning.shared_parameters",
):
    """Settings common to all pruned rows."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=_NOT_COMPRESSED,
    )
    """Turn row pruning on."""

    method: Literal["l1", "topk"] = param("l1")
    """`l1` keeps the largest rows; `topk` learns which rows to keep."""

    schedule_offset: Natural = param(1000)
    """Step at which row pruning starts."""


class HeadPruning(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with compression_training, which train.py does not support",
    section="compression_training.head_pruning",
    always_sent=("different_groups",),
):
    """Remove attention heads."""

    different_groups: dict[str, Any] = param({})
    """Groups of output projections of attention, each with its dense_ratio (the fraction of heads to keep) and the
    query, key and value projections that belong to it."""


class HeadPruningShared(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with compression_training, which train.py does not support",
    section="compression_training.head_pruning.shared_parameters",
):
    """Settings common to all pruned heads."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=_NOT_COMPRESSED,
    )
    """Turn head pruning on."""

    method: Literal["l1", "topk"] = param("topk")
    """`topk` learns which heads to keep; DeepSpeed does not implement `l1`, which would keep the largest."""

    schedule_offset: Natural = param(1000)
    """Step at which head pruning starts."""

    num_heads: Count | None = param(None)
    """Number of heads per layer. Required."""


class ChannelPruning(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with compression_training, which train.py does not support",
    section="compression_training.channel_pruning",
    always_sent=("different_groups",),
):
    """Remove channels of convolutions."""

    different_groups: dict[str, Any] = param({})
    """Groups of modules, each with its dense_ratio, the fraction of channels to keep."""


class ChannelPruningShared(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with compression_training, which train.py does not support",
    section="compression_training.channel_pruning.shared_parameters",
):
    """Settings common to all pruned channels."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=_NOT_COMPRESSED,
    )
    """Prune channels."""

    method: Literal["l1", "topk"] = param("l1")
    """`l1` keeps the largest channels; `topk` learns which channels to keep."""

    schedule_offset: Natural = param(1000)
    """Step at which channel pruning starts."""


class Eigenvalue(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only for quantisation while training, which train.py does not support",
    section="quantize_training.eigenvalue",
):
    """Use the curvature of the loss to schedule quantisation. Current DeepSpeed accepts these settings, but stops with
    an error if `enabled` is true."""

    enabled: bool = param(
        False,
        effect="not built",
        refused="DeepSpeed has disabled it and stops with an error",
    )
    """Turn this section on; true is an error in current DeepSpeed."""

    verbose: bool = param(False)
    """Print progress."""

    max_iter: Count = param(100)
    """Maximum number of iterations of the power method."""

    tol: Positive = param(1e-2)
    """Relative change below which the iteration counts as converged."""

    stability: NonNegative = param(1e-6)
    """Added to denominators against division by zero."""

    gas_boundary_resolution: Count = param(1)
    """Number of optimizer steps between two computations of the eigenvalues."""

    layer_name: str = param("bert.encoder.layer")
    """Name of the list of layers in the model."""

    layer_num: Natural = param(0)
    """Number of layers in the list that `layer_name` names."""


class WeightQuantization(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="only DeepSpeed's inference engine reads it",
    section="weight_quantization",
):
    """Quantise weights when they are loaded, for generation with large models; training does not read this section."""

    enabled: bool = param(True)
    """Quantise weights. Without this section, weights are not quantised."""

    num_bits: Count = param(8)
    """Bits per weight."""

    q_type: Literal["symmetric", "asymmetric"] = param("symmetric")
    """Whether the range of values is symmetric around 0."""

    q_groups: Count = param(1)
    """Number of groups of weights; each group has its own range."""

    quantized_initialization: dict[str, Any] = param(
        {},
        effect="not built",
        refused=(
            "ZeRO-3 would store the weights of torch.nn.Linear and torch.nn.Embedding layers as 4-bit or 8-bit "
            "integers, which have no gradient, so this is only for inference; deepy's layers belong to neither class"
        ),
    )
    """Settings for weights that are quantised while the model is built: num_bits, group_size, group_dim, symmetric."""

    post_init_quant: dict[str, Any] = param({})
    """Settings for weights that are quantised after the model has been built, keyed by layer name."""
