"""Losses that layers add to the cross entropy, on any pipeline stage, without communication between stages, and what
a loss measures besides its value.

The loss of a step is the cross entropy plus weight x term, summed over layers and averaged over micro batches. The
gradient of a term is a constant, so that the layer itself starts the term's backward pass when that of its output
arrives there (as Megatron-LM does). A term's value is recorded there too: once, also if the layer is recomputed, and
only in training.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.train.process.mesh import Mesh


class Term(NamedTuple):
    """A scalar that a layer adds to the loss."""

    value: Tensor
    weight: float
    """Factor of the value in the loss; with 0, the value is only reported."""


class AddedLosses:
    """The terms of one step, and the measures of a step or an evaluation, by name. The layers of a model share one.

    terms, measures: all names; equal on every rank. Each comes from one pipeline stage, or from layers of several.
    """

    def __init__(self, terms: Collection[str] = (), measures: Collection[str] = ()) -> None:
        self.terms, self.measures = terms, measures
        #: The gradient with which the backward pass of a micro batch begins: loss scale / gradient accumulation steps.
        self.gradient = 1.0
        #: Name -> (2): the sum of the values, and of what they count.
        self._sums: dict[str, Tensor] = {}

    def add(self, x: Tensor, terms: Mapping[str, Term]) -> Tensor:
        """Return x, the layer's output, of any shape. Its backward pass begins that of the terms, each ()."""
        # In fp32: sums over micro batches lose digits in 16 bits.
        values = torch.stack([term.value.float() for term in terms.values()])
        weights = [term.weight for term in terms.values()]
        return _Add.apply(x, values, weights, list(terms), self)  # type: ignore[no-untyped-call, no-any-return]

    def begin_step(self, loss_scale: float, micro_batches: int) -> None:
        """Forget the last step. loss_scale: the factor on the loss in the coming backward passes."""
        self.gradient = loss_scale / micro_batches
        self.begin_evaluation()

    def begin_evaluation(self) -> None:
        """Forget what was recorded."""
        self._sums.clear()

    def record(self, names: Sequence[str], values: Tensor) -> None:
        """Add the terms of one layer and micro batch to the sums of the step. values: (names)."""
        for name, value in zip(names, values, strict=True):
            self._add(name, value, torch.ones_like(value))

    def measure(self, values: Mapping[str, tuple[Tensor, Tensor | None]]) -> None:
        """Add the measures of a micro batch: name -> values of its samples, and which of them count; None for all."""
        for name, (of_samples, counts) in values.items():
            counts = torch.ones_like(of_samples) if counts is None else counts.to(of_samples)
            self._add(name, (of_samples.detach() * counts).sum(), counts.sum())

    def _add(self, name: str, value: Tensor, count: Tensor) -> None:
        both = torch.stack((value, count))
        self._sums[name] = self._sums[name] + both if name in self._sums else both

    def of_step(self, mesh: Mesh, device: torch.device) -> dict[str, float]:
        """Return each term's mean over layers, micro batches and replicas, and the mean of each measure.

        Collective, unless there are neither. A measure that no sample counts in is left out.
        """
        return self._means([*self.terms, *self.measures], mesh, device)

    def of_evaluation(self, mesh: Mesh, device: torch.device) -> dict[str, float]:
        """Return the mean of each measure. Collective, unless there are none."""
        return self._means(list(self.measures), mesh, device)

    def _means(self, names: list[str], mesh: Mesh, device: torch.device) -> dict[str, float]:
        if not names:
            return {}
        none = torch.zeros(2, device=device)
        total = torch.stack([self._sums.get(name, none) for name in names])
        # Not over tensor parallel ranks, which all compute the same.
        for axis in (mesh.pipe, mesh.data):
            if axis.size > 1:
                dist.all_reduce(total, group=axis.group)
        sums = zip(names, total.tolist(), strict=True)
        return {name: value / count for name, (value, count) in sums if count}


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, weights: list[float], names: list[str], to: AddedLosses) -> Tensor:
        ctx.save_for_backward(values)
        ctx.weights, ctx.names, ctx.to = weights, names, to
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (values,) = ctx.saved_tensors
        # In the backward pass, which runs once per layer and micro batch, also where the forward pass is repeated.
        ctx.to.record(ctx.names, values)
        # autograd multiplies this with what produced the values: as if the terms had been added to the loss itself.
        return gradient, values.new_tensor(ctx.weights) * ctx.to.gradient, None, None, None
