"""What keeps the model from memorising."""

from __future__ import annotations

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Fraction, NonNegative


class Regularization(Group, origin="Meg"):
    """Dropout and weight decay."""

    attention_dropout: Fraction = param(0.1, megatron="attention-dropout")
    hidden_dropout: Fraction = param(0.1, megatron="hidden-dropout")
    weight_decay: NonNegative = param(0.01, megatron="weight-decay")
