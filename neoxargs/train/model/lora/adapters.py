"""Adapters beside the tensor parallel layers of a frozen model (LoRA, Hu et al. 2021, arXiv:2106.09685).

An adapter adds scale x B A x to what a layer computes from x. Beside a column layer, A is the same on every rank and B
is sliced like the layer's outputs; beside a row layer, A is sliced like its inputs and B is the same on every rank.
Between A and B there are only `rank` numbers per token, so the sum over the ranks is made there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.facts.lora import ALL, Target, scale, targets
from neoxargs.registry.lora import Lora
from neoxargs.train.parallel.communicate import enter_region, leave_region, register_gradient_sum
from neoxargs.train.parallel.init import normal, uniform, zeros
from neoxargs.train.parallel.layers import ColumnLinear, RowLinear, Weights
from neoxargs.train.parallel.tensor_rng import different_on_each_rank
from neoxargs.train.process.mesh import Axis

#: Name of the module with a layer's adapters.
MODULE = "lora"


class Adapter(nn.Module):
    """One pair of matrices: A (L, inputs) and B (outputs, L)."""

    def __init__(self, options: Lora, target: Target, name: str, weights: Weights, partial: bool) -> None:
        super().__init__()
        down, up = (1, None) if target.cuts_inputs else (None, 0)
        # As peft does; its kaiming_uniform with a = sqrt(5) has this bound.
        method = normal(1 / options.rank) if options.init == "gaussian" else uniform(1 / math.sqrt(target.inputs))
        self.A = weights.parameter("A", (options.rank, target.inputs), method, split=down)
        size, slices = (target.rows(name), options.rank), target.slices(name)
        self.B = weights.parameter("B", size, zeros, split=up, parts=slices)
        self.dropout, self.partial = options.dropout, partial
        self.tensor, self.sequence = weights.ranks.tensor, weights.ranks.sequence
        if not target.cuts_inputs:  # each rank applies A to its shard of the sequence
            register_gradient_sum([self.A], self.sequence)
        else:  # each applies B to its shard of the sequence or, if partial, to its own summand of A x
            register_gradient_sum([self.B], self.tensor if partial else self.sequence)

    def _narrowed(self, x: Tensor, axis: Axis) -> Tensor:
        """Return x after dropout, times A: (B, S, L). axis: the ranks that have other elements of x."""
        if self.training and self.dropout:
            with different_on_each_rank(axis, x.device):
                x = F.dropout(x, self.dropout)
        return F.linear(x, self.A)


class ColumnAdapter(Adapter):
    """An adapter beside a column layer: x_BSD -> (B, S, outputs / ranks)."""

    def forward(self, x_BSD: Tensor, factor: float) -> Tensor:
        # Scaled here, where there are only L numbers per token.
        narrow_BSL = self._narrowed(x_BSD, self.sequence) * factor
        # As in the column layer itself: see ColumnLinear.forward.
        return F.linear(enter_region(narrow_BSL, self.tensor, self.sequence), self.B)


class RowAdapter(Adapter):
    """An adapter beside a row layer: x_BSF, this rank's inputs -> (B, S, D), or this rank's summand if `partial`."""

    def forward(self, x_BSF: Tensor, factor: float) -> Tensor:
        narrow_BSL = self._narrowed(x_BSF, self.tensor)  # one summand on each rank
        if not self.partial and self.tensor.size > 1:
            narrow_BSL = leave_region(narrow_BSL, self.tensor, self.sequence)
        return F.linear(narrow_BSL * factor, self.B)


class Adapters(nn.Module):
    """The adapters of one layer; returns what is added to its output."""

    def __init__(self, config: Config, target: Target, weights: Weights, partial: bool) -> None:
        super().__init__()
        self.target, self.scale, self.ranks = target, scale(config), weights.ranks.tensor.size
        kind = RowAdapter if target.cuts_inputs else ColumnAdapter
        for name in target.adapted:
            self.add_module(name, kind(config.lora, target, name, weights.at(name), partial))

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs), both as the layer has them on this rank."""
        deltas = {name: adapter(x, self.scale) for name, adapter in self.named_children()}
        return assembled(self.target, deltas, self.ranks)


def assembled(target: Target, deltas: Mapping[str, Tensor], ranks: int = 1) -> Tensor:
    """Return what is added to a layer's output (…, rows / ranks), from the outputs of its adapters; 0 without one."""
    if ALL in deltas:
        return deltas[ALL]
    like = next(iter(deltas.values()))
    groups = max(1, target.groups // ranks)  # those of this rank; a gated projection is sliced part by part
    blocks = []
    for name, rows in target.parts:
        width = rows * target.groups // ranks // groups
        shape = (*like.shape[:-1], groups, width)
        blocks.append(deltas[name].view(shape) if name in deltas else like.new_zeros(shape))
    return torch.cat(blocks, dim=-1).flatten(-2)


def attach(parts: Mapping[str, nn.Module], config: Config, weights: Weights) -> None:
    """Add the adapters that the configuration asks for to the layers of a model, or of a pipeline stage.

    parts: by the prefix of the names of their weights.
    """
    by_name = {target.module: target for target in targets(config)}
    for path, part in parts.items() if by_name else ():
        # A list first: attaching adds modules, which the iteration must not meet.
        for name, layer in list(part.named_modules(prefix=path)):
            target = by_name.get(re.sub(r"^layers\.\d+\.", "", name))
            if target is not None and isinstance(layer, ColumnLinear | RowLinear):
                partial = isinstance(layer, RowLinear) and layer.partial
                layer.lora = Adapters(config, target, weights.at(f"{name}.{MODULE}"), partial)


@contextmanager
def disabled(module: nn.Module) -> Iterator[None]:
    """Let the model compute within this as if it had no adapters."""
    found = [(layer, layer.scale) for layer in module.modules() if isinstance(layer, Adapters)]
    for layer, _ in found:
        layer.scale = 0.0
    yield
    for layer, factor in found:
        layer.scale = factor


def is_adapter(name: str) -> bool:
    """Whether a weight belongs to an adapter."""
    return f".{MODULE}." in name
