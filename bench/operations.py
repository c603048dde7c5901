"""Floating point operations of one micro batch on a rank of a pipeline stage, as the kernels of a GPU compute them.

Matrix products count as 2 operations for each multiplication and addition. Attention counts as if it were not causal,
as in the model's operations per token (`facts/model.py`). What differs from those: a fused attention kernel computes
the scores again in its backward pass, five products instead of four (Dao et al. 2022, arXiv:2205.14135), and
recomputation repeats the forward pass of the layers, but not of the output layer, whose gradients the forward pass
computes (`train/losses/cross_entropy.py`). A ring computes only pairs of chunks that see each other, 2n + 1 of each
rank's 4n with n ranks in it and without windows, and in its backward pass also the output of each pair, seven products
(`train/ops/ring.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from neoxargs.config.config import Config
from neoxargs.facts.attention import attention_width
from neoxargs.facts.layer_kinds import has_attention
from neoxargs.facts.model import matrices_of_layer, mlp_width
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.activations import recomputed_groups, stops_early
from neoxargs.plan.memory.attention import share_unfused
from neoxargs.plan.memory.stages import Stage


@dataclass(frozen=True)
class Operations:
    """Operations of one micro batch on one rank: forward pass, backward pass and recomputation."""

    linear: int
    """Matrix products with the weights of the layers."""
    attention: int
    """Products of queries and keys, and of probabilities and values."""
    vocabulary: int
    """The output layer and its gradients, on the last stage."""

    @property
    def total(self) -> int:
        return self.linear + self.attention + self.vocabulary


def stage_operations(config: Config, stage: Stage, rows: int) -> Operations:
    """Return the operations of a rank of `stage`. rows: of the padded vocabulary."""
    sizes = ActivationSizes(config)
    tensor, hidden, layers = sizes.tensor, config.shape.hidden_size, len(stage.layers)
    of_layers = sum(matrices_of_layer(config, layer, active=True) for layer in stage.layers)
    linear = 2 * sizes.tokens * (of_layers // max(layers, 1)) // tensor
    with_attention = sum(has_attention(config, layer) for layer in stage.layers)
    attention = 4 * sizes.tokens * config.shape.seq_length * attention_width(config.shape) // tensor
    groups = recomputed_groups(config, layers)
    times = 2 if groups else 1  # of each forward pass
    # A group's last product is not recomputed, because nothing after it is kept, unless there is dropout.
    skips_last = stops_early(config) and not config.regularization.hidden_dropout
    last = 2 * sizes.tokens * hidden * mlp_width(config.shape, config.mlp) // tensor
    unfused = 0.0 if config.precision.precision == "fp32" else share_unfused(config)
    products = 5 - unfused  # of a backward pass: four where the scores are stored
    if (ring := sizes.context // sizes.other_heads) > 1:
        attention, products = attention * (2 * ring + 1) // (4 * ring), 7
    return Operations(
        linear=(times + 2) * layers * linear - (groups * last if skips_last else 0),
        attention=times * with_attention * attention + round(with_attention * attention * products / 2),  # two products
        vocabulary=6 * sizes.tokens * rows // tensor * hidden if stage.last else 0,
    )
