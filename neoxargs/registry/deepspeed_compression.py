"""Compression: DeepSpeed's sections `compression_training` and `weight_quantization`, for quantisation, pruning and
layer reduction.

Each technique of `compression_training` has `shared_parameters`, declared here, and `different_groups`: name ->
{params, modules, related_modules}, where `params` are the technique's own and `modules` are patterns of module names.
"""

from __future__ import annotations

from neoxargs.registry import data_file

data_file.declare(
    __name__,
    "compression_training.layer_reduction",
    "compression_training.weight_quantization",
    "compression_training.weight_quantization.shared_parameters",
    "compression_training.weight_quantization.shared_parameters.fp16_mixed_quantize",
    "compression_training.activation_quantization",
    "compression_training.activation_quantization.shared_parameters",
    "compression_training.sparse_pruning",
    "compression_training.sparse_pruning.shared_parameters",
    "compression_training.row_pruning",
    "compression_training.row_pruning.shared_parameters",
    "compression_training.head_pruning",
    "compression_training.head_pruning.shared_parameters",
    "compression_training.channel_pruning",
    "compression_training.channel_pruning.shared_parameters",
    "quantize_training.eigenvalue",
    "weight_quantization",
)
