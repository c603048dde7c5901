"""Dropout and weight decay."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Fraction, NonNegative


class Regularization(Group, origin="Meg", effect="model"):
    """Dropout and weight decay."""

    attention_dropout: Fraction = param(0.1, megatron="attention-dropout")
    """Probability that an attention weight is set to zero during training. GPT-NeoX's default became 0 in December
    2023."""

    hidden_dropout: Fraction = param(0.1, megatron="hidden-dropout")
    """Probability that an element of the embedding, attention or feed-forward output is set to zero during training.
    GPT-NeoX's default became 0 in December 2023."""

    weight_decay: NonNegative = param(0.01, megatron="weight-decay")
    """How strongly each step pulls weights towards zero; biases and norm scales are exempt. Adam applies it separately
    from the gradient (AdamW). GPT-NeoX's default became 0.1 in December 2023."""

    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = param(
        "constant", ours=True, megatron="weight-decay-incr-style"
    )
    """Shape in which the weight decay goes from `start_weight_decay` to `end_weight_decay` over the run. `constant` is
    `weight_decay` throughout."""

    start_weight_decay: NonNegative | None = param(None, ours=True, megatron="start-weight-decay")
    """Weight decay of the first iteration, unless `weight_decay_incr_style` is `constant`."""

    end_weight_decay: NonNegative | None = param(None, ours=True, megatron="end-weight-decay")
    """Weight decay at the end of the run, unless `weight_decay_incr_style` is `constant`."""
