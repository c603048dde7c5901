"""The operations that the backward pass recomputes with `checkpoint_activations: true`, and where it stops."""

from __future__ import annotations

from neoxargs.config.config import Config


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
