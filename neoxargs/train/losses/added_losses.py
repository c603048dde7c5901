"""Losses that layers add to the cross entropy, on any pipeline stage, without communication between stages.

The loss of a step is the cross entropy plus weight x term, summed over layers and averaged over micro batches. The
gradient of a term is a constant, so that the layer itself starts the term's backward pass when that of its output
arrives there (as Megatron-LM does). A term's value is recorded there too: once, also if the layer is recomputed, and
only in training.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neoxargs.train.autograd import apply
from neoxargs.train.losses.means import Means


class Term(NamedTuple):
    """A scalar that a layer adds to the loss."""

    value: Tensor
    weight: float
    """Factor of the value in the loss; with 0, the value is only reported."""


class AddedLosses:
    """The terms of one step, by name. The layers of a model share one.

    terms: as the names of `Means`.
    """

    def __init__(self, terms: Collection[str] = ()) -> None:
        self.means = Means(terms)
        #: The gradient with which the backward pass of a micro batch begins: loss scale / gradient accumulation steps.
        self.gradient = 1.0

    def add(self, x: Tensor, terms: Mapping[str, Term]) -> Tensor:
        """Return x, the layer's output, of any shape. Its backward pass begins that of the terms, each ()."""
        # In fp32: sums over micro batches lose digits in 16 bits.
        values = {name: term.value.float() for name, term in terms.items()}
        summands = torch.stack([values[name] * term.weight for name, term in terms.items()])
        recorded = {name: value.detach() for name, value in values.items()}
        return apply(_Add, x, summands, recorded, self)

    def begin_step(self, loss_scale: float, micro_batches: int) -> None:
        """Forget the last step. loss_scale: the factor on the loss in the coming backward passes."""
        self.gradient = loss_scale / micro_batches
        self.means.clear()


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, summands: Tensor, values: Mapping[str, Tensor], to: AddedLosses) -> Tensor:
        ctx.summands, ctx.values, ctx.to = summands.detach(), values, to
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # In the backward pass, which runs once per layer and micro batch, also where the forward pass is repeated.
        for name, value in ctx.values.items():
            ctx.to.means.add(name, value, torch.ones_like(value))
        # autograd multiplies this with what produced the summands: as if they had been added to the loss itself.
        return gradient, torch.full_like(ctx.summands, ctx.to.gradient), None, None
