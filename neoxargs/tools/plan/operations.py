"""Floating point operations of one micro batch on a rank of a pipeline stage, as the kernels of a GPU compute them.

Matrix products count as 2 operations for each multiplication and addition. Attention counts as if it were not causal,
as in the model's operations per token (`sizes/model.py`). What differs from those: a fused attention kernel computes
the scores again in its backward pass, five products instead of four (Dao et al. 2022, arXiv:2205.14135), and
recomputation repeats the forward pass of the layers, but not of the output layer, whose gradients the forward pass
computes (`train/kernels/cross_entropy.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from neoxargs.resolve.config import Config
from neoxargs.sizes.model import matrices_of_layer, mlp_width
from neoxargs.tools.plan.memory.activations import ActivationSizes, unfused_share
from neoxargs.tools.plan.memory.stages import Stage


@dataclass(frozen=True)
class Operations:
    """Operations of one micro batch on one rank: forward, backward and what the backward pass computes again."""

    linear: int
    """Of the matrix products with the layers' weights."""
    attention: int
    """Of the products of queries with keys and of probabilities with values."""
    vocabulary: int
    """Of the output layer and its gradients, on the last stage."""

    @property
    def total(self) -> int:
        return self.linear + self.attention + self.vocabulary


def stage_operations(config: Config, stage: Stage, rows: int) -> Operations:
    """Return the operations of a rank of `stage`. rows: of the padded vocabulary."""
    sizes = ActivationSizes(config)
    tensor, hidden, layers = sizes.tensor, config.shape.hidden_size, len(stage.layers)
    linear = 2 * sizes.tokens * matrices_of_layer(config) // tensor
    attention = 4 * sizes.tokens * config.shape.seq_length * hidden // tensor
    groups = recomputed_groups(config, layers)
    forward = 2 * layers if groups else layers
    last = 2 * sizes.tokens * hidden * mlp_width(config.shape, config.mlp) // tensor
    return Operations(
        linear=(forward + 2 * layers) * linear - (groups * last if skips_last_product(config) else 0),
        attention=forward * attention + round(layers * attention * (5 - unfused_share(config)) / 2),
        vocabulary=6 * sizes.tokens * rows // tensor * hidden if stage.last else 0,
    )


def recomputed_groups(config: Config, layers: int) -> int:
    """Return the number of groups of layers that the backward pass recomputes; 0 without recomputation."""
    if config.recompute.checkpoint_activations is not True:  # selective recomputes no matrix products
        return 0
    return -(-layers // config.recompute.checkpoint_num_layers)


def stops_early(config: Config) -> bool:
    """Whether recomputation of a group stops at the last tensor that its backward pass reads.

    torch's non-reentrant checkpointing does; ZeRO-3 and DeepSpeed's own checkpointing recompute everything.
    """
    options = config.recompute
    own = options.partition_activations or options.contiguous_checkpointing or options.checkpoint_in_cpu
    return config.zero_optimization.stage < 3 and (own or not options.deepspeed_activation_checkpointing)


def skips_last_product(config: Config) -> bool:
    """Whether a group's last matrix product is not recomputed: nothing after it is kept, unless there is dropout."""
    return stops_early(config) and not config.regularization.hidden_dropout
