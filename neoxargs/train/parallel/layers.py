"""Weights divided over ranks, and the layers that have them.

This is the only place where a weight is divided: modules get divided parameters and layers from `Weights`.

Column layers hold a slice of the outputs, row layers a slice of the inputs. A column layer, an element-wise function
and a row layer together cost one all-reduce in the forward and one in the backward pass (Shoeybi et al. 2019,
arXiv:1909.08053). megatron-core's layers are not used, because they add the bias in a second pass, draw initial values
by rank, return tuples, and put an empty extra state into every checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.train.autograd import apply
from neoxargs.train.parallel.communicate import enter_and_multiply, leave_region, register_gradient_sum
from neoxargs.train.parallel.init import CPU, Initializer, initial_matrices, initial_values, zeros
from neoxargs.train.parallel.positions import Positions
from neoxargs.train.parallel.widths import Widths
from neoxargs.train.process.mesh import ALONE, Axis, Mesh


class TensorShard(NamedTuple):
    """The slice of a weight that this rank holds: number `rank` of `size` along `dimension` of each of the `parts`."""

    dimension: int
    parts: int
    rank: int
    size: int


def shards_of(weight: nn.Parameter) -> list[TensorShard]:
    """Return the slice of a weight for this tensor parallel rank, then that within it for the expert parallel rank."""
    found = (getattr(weight, name, None) for name in ("tensor_shard", "expert_shard"))
    return [shard for shard in found if shard is not None]


def is_expert(weight: nn.Parameter) -> bool:
    """Whether data parallel ranks have different slices of this weight, because they divide the experts."""
    return hasattr(weight, "expert_shard")


def shape_of(weight: nn.Parameter) -> torch.Size:
    """Return the shape of this rank's slice of a weight, which ZeRO-3 may have divided further into flat shards."""
    shape: torch.Size = getattr(weight, "ds_shape", weight.shape)  # DeepSpeed's record of it
    return shape


def unsharded_shape(weight: nn.Parameter) -> list[int]:
    """Return the shape of a weight before ZeRO-3, tensor and expert parallelism divide it."""
    shape = list(shape_of(weight))
    for shard in shards_of(weight):
        shape[shard.dimension] *= shard.size
    return shape


def join_slices(slices: Sequence[Tensor], shard: TensorShard) -> Tensor:
    """Join the slices of all ranks, in rank order, to the full weight."""
    # A weight of several parts (a gated projection) is cut part by part, so its parts are joined one by one too.
    parts = zip(*(slice_.chunk(shard.parts, shard.dimension) for slice_ in slices), strict=True)
    return torch.cat(list(chain.from_iterable(parts)), shard.dimension)


def rank_slice(full: Tensor, shard: TensorShard) -> Tensor:
    """Return the slice of the full weight that the rank `shard.rank` holds."""
    size = full.shape[shard.dimension]
    assert size % (shard.parts * shard.size) == 0, f"{shard.size} ranks cannot share {size} features equally"
    parts = full.chunk(shard.parts, shard.dimension)
    return torch.cat([part.chunk(shard.size, shard.dimension)[shard.rank] for part in parts], shard.dimension)


@dataclass(frozen=True)
class Ranks:
    """Which ranks hold the rest of a layer's weights, and of the sequence."""

    tensor: Axis = ALONE
    expert: Axis = ALONE
    """The data parallel ranks that divide the experts of a layer among them."""
    sequence_parallel: bool = False
    context: Axis = ALONE
    """The ranks with other positions of the same samples."""
    context_heads: Axis = ALONE
    """Those with other heads of the same positions within attention."""
    context_ring: Axis = ALONE
    """Those with the same heads within attention, around which keys and values go."""

    @classmethod
    def of(cls, mesh: Mesh, sequence_parallel: bool = False) -> Ranks:
        """Return the ranks of a mesh."""
        context = mesh.context, mesh.context_heads, mesh.context_ring
        return cls(mesh.tensor, mesh.expert, sequence_parallel, *context)

    @property
    def sequence(self) -> Axis:
        """The ranks that shard the sequence between parallel regions; `ALONE` without sequence parallelism."""
        return self.tensor if self.sequence_parallel else ALONE

    @property
    def heads(self) -> Axis:
        """The ranks among which attention divides the heads. Not for communication."""
        outer, inner = self.tensor, self.context_heads
        return Axis(outer.size * inner.size, outer.rank * inner.size + inner.rank)

    @property
    def positions(self) -> Positions:
        """The positions that this rank has where no communication is under way."""
        return Positions(self.context, ring=self.context_ring.size)

    @property
    def attended(self) -> Positions:
        """The positions of which this rank has queries within attention."""
        return Positions(self.context_ring, ring=self.context_ring.size)

    @property
    def divided(self) -> Positions | None:
        """`positions`, or None if this rank has whole sequences."""
        return self.positions if self.context.size > 1 else None


@dataclass(frozen=True)
class Weights:
    """Factory of the parameters and parallel layers that one rank holds.

    `weights.at("mlp")` is the factory for parameters named `mlp.…`. The name determines the initial values.
    """

    seed: int = 1234
    ranks: Ranks = Ranks()
    device: torch.device = CPU
    """Device on which initial values are drawn."""
    place: torch.device | None = None
    """Device of the parameters; None: torch's default device, which deepspeed.zero.Init changes."""
    dtype: torch.dtype | None = None
    """Type of the parameters, to which their fp32 initial values are cast; None: torch's default type."""
    widths: Widths | None = None
    """With muP, the shapes of the base model, from which the scale of each weight's initial values follows."""
    path: str = ""

    def at(self, name: str) -> Weights:
        return replace(self, path=self._full_name(name))

    def parameter(
        self,
        name: str,
        shape: tuple[int, ...],
        method: Initializer,
        split: int | None = None,
        parts: int = 1,
        by_expert: bool = False,
    ) -> nn.Parameter:
        """Return this rank's slice along dimension `split` of a parameter of the unsharded `shape`.

        The slice has an equal share of each of `parts` equal parts along that dimension (a gate and its value, for
        example). `split` None: every tensor parallel rank holds the full parameter. by_expert: it is a stack of the
        experts' matrices, and the slice is sliced again along the first dimension, for the expert parallel ranks.

        The parameter is created with its initial value. deepspeed.zero.Init (ZeRO-3) partitions a module's parameters
        when the module's constructor returns. Values drawn later would be written into tensors of size 0, without an
        error; a model left at zeros has no gradient, and its loss stays at ln(vocabulary).
        """
        # Has the device and dtype of new tensors, which deepspeed.zero.Init and torch.device() set.
        like = torch.empty(0, device=self.place, dtype=self.dtype)
        full_name = self._full_name(name)
        drawn = shape, method, self.seed, full_name, self.device
        factor = 1.0 if self.widths is None else self.widths.std_factor(full_name, shape)
        tensor, expert = self.ranks.tensor, self.ranks.expert
        # Every rank draws the full weight and keeps its slice, so that the values do not depend on the layout.
        if by_expert:
            own = self._own_experts(shape[0], split)
            matrices = islice(initial_matrices(*drawn), own.stop)
            along = split - 1 if split else None
            kept = (self._slice(x.mul_(factor), along, parts) for x in islice(matrices, own.start, None))
            parameter = nn.Parameter(torch.stack([x.to(like, copy=True) for x in kept]))
        else:
            # A copy: a slice would keep the full weight in memory, and torch's fused AdamW needs contiguous weights.
            local = self._slice(initial_values(*drawn).mul_(factor), split, parts).to(like)
            parameter = nn.Parameter(local.clone(memory_format=torch.contiguous_format))
        # DeepSpeed and Megatron count gradients of parameters without this mark once in the norm, not once per rank.
        parameter.tensor_model_parallel = split is not None  # type: ignore[attr-defined]
        if split is not None:
            # Kept for checkpoints and exports, which join the slices.
            tensor_shard = TensorShard(split, parts, tensor.rank, tensor.size)
            parameter.tensor_shard = tensor_shard  # type: ignore[attr-defined]
        if by_expert and expert.size > 1:
            expert_shard = TensorShard(0, 1, expert.rank, expert.size)
            parameter.expert_shard = expert_shard  # type: ignore[attr-defined]
        return parameter

    def column(
        self, name: str, inputs: int, outputs: int, method: Initializer, bias: bool = True, parts: int = 1
    ) -> ColumnLinear:
        """Return a layer with this rank's share of `outputs`; its parameters are `name.weight` and `name.bias`."""
        return ColumnLinear(inputs, outputs, method, bias, self.at(name), parts)

    def row(
        self, name: str, inputs: int, outputs: int, method: Initializer, bias: bool = True, partial: bool = False
    ) -> RowLinear:
        """Return a layer with this rank's share of `inputs`. partial: the caller sums its outputs over the ranks."""
        return RowLinear(inputs, outputs, method, bias, self.at(name), partial)

    def _slice(self, full: Tensor, split: int | None, parts: int) -> Tensor:
        """Return this tensor parallel rank's share of each of the parts along a dimension."""
        axis = self.ranks.tensor
        if split is None or axis.size == 1:
            return full
        return rank_slice(full, TensorShard(split, parts, axis.rank, axis.size))

    def _own_experts(self, count: int, split: int | None) -> range:
        """Return the experts of this rank, which tensor parallel ranks divide among them first if `split` is 0."""
        own = range(count)
        for axis in (self.ranks.tensor, self.ranks.expert) if split == 0 else (self.ranks.expert,):
            size = len(own) // axis.size
            own = own[axis.rank * size : (axis.rank + 1) * size]
        return own

    def _full_name(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


class Shapes(Weights):
    """Factory of parameters on the meta device, which have a shape but no values."""

    def parameter(
        self,
        name: str,
        shape: tuple[int, ...],
        method: Initializer,
        split: int | None = None,
        parts: int = 1,
        by_expert: bool = False,
    ) -> nn.Parameter:
        sizes = [size // (self.ranks.tensor.size if d == split else 1) for d, size in enumerate(shape)]
        if by_expert:
            sizes[0] //= self.ranks.expert.size
        return nn.Parameter(torch.empty(sizes, device="meta"))


class ColumnLinear(nn.Module):
    """Linear layer whose outputs are partitioned: (…, inputs), equal on every rank -> (…, outputs / ranks).

    The output has an equal share of each of `parts`. With sequence parallelism the input is a shard:
    (B, S / ranks, inputs) -> (B, S, outputs / ranks).
    """

    def __init__(
        self, inputs: int, outputs: int, method: Initializer, bias: bool, weights: Weights, parts: int = 1
    ) -> None:
        super().__init__()
        self.tensor, self.sequence = weights.ranks.tensor, weights.ranks.sequence
        self.weight = weights.parameter("weight", (outputs, inputs), method, split=0, parts=parts)
        self.bias = weights.parameter("bias", (outputs,), zeros, split=0, parts=parts) if bias else None
        #: Returns what adapters add to the output; None without adapters.
        self.lora: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = enter_and_multiply(x, self.weight, self.bias, self.tensor, self.sequence)
        return y if self.lora is None else y + self.lora(x)


class RowLinear(nn.Module):
    """Linear layer whose inputs are partitioned: (…, inputs / ranks) -> (…, outputs), equal on every rank.

    With sequence parallelism the output is a shard, (B, S / ranks, outputs). If `partial` it is one summand,
    that of this rank.
    """

    def __init__(
        self, inputs: int, outputs: int, method: Initializer, bias: bool, weights: Weights, partial: bool
    ) -> None:
        super().__init__()
        self.tensor, self.sequence = weights.ranks.tensor, weights.ranks.sequence
        self.weight = weights.parameter("weight", (outputs, inputs), method, split=1)
        self.bias = weights.parameter("bias", (outputs,), zeros) if bias else None
        self.partial = partial
        # Each rank adds the bias to its shard of the sequence only, so its gradient is partial.
        if self.bias is not None and not self.partial:
            register_gradient_sum([self.bias], self.sequence)
        #: Returns what adapters add to the output; None without adapters.
        self.lora: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.tensor.size == 1:
            y = F.linear(x, self.weight, self.bias)
        elif self.partial:
            y = F.linear(x, self.weight)
            y = y if self.bias is None else y + _bias_summand(self.bias, self.tensor.size)
        else:
            y = leave_region(F.linear(x, self.weight), self.tensor, self.sequence)  # the all-reduce
            y = y if self.bias is None else y + self.bias  # after the sum, so that it counts once
        return y if self.lora is None else y + self.lora(x)


def _bias_summand(bias: Tensor, ranks: int) -> Tensor:
    """Return bias / ranks, with the gradient of the full bias, because every rank gets the gradient of the sum."""
    return bias.detach() / ranks + (bias - bias.detach())


class VocabEmbedding(nn.Module):
    """Embedding whose rows are partitioned: tokens_BS -> hidden_BSD, or a shard with sequence parallelism.

    Each rank looks up the tokens whose rows it holds; the sum over the ranks is the result.
    """

    def __init__(self, rows: int, hidden: int, method: Initializer, weights: Weights) -> None:
        super().__init__()
        self.tensor, self.sequence = weights.ranks.tensor, weights.ranks.sequence
        self.weight = weights.parameter("weight", (rows, hidden), method, split=0)
        #: Add to the weight's gradient row by row (see _AddRows). Valid only if nothing reads or reduces that gradient
        #: before all micro batches of a step have been added.
        self.adds_rows = False

    def forward(self, tokens_BS: Tensor) -> Tensor:
        if self.tensor.size == 1:
            return self._look_up(tokens_BS)
        rows = self.weight.shape[0]
        # Tokens as row numbers of this rank's slice.
        local_BS = tokens_BS - self.tensor.rank * rows
        elsewhere_BS = (local_BS < 0) | (local_BS >= rows)
        # Row 0 stands for tokens of other ranks; its vectors are set to 0 below, and so are their gradients.
        vectors_BSD = self._look_up(local_BS.masked_fill(elsewhere_BS, 0))
        return leave_region(vectors_BSD.masked_fill(elsewhere_BS.unsqueeze(-1), 0), self.tensor, self.sequence)

    def _look_up(self, tokens: Tensor) -> Tensor:
        if self.adds_rows and self.weight.grad is not None and torch.is_grad_enabled():
            return apply(_AddRows, self.weight, tokens)
        return F.embedding(tokens, self.weight)


class _AddRows(torch.autograd.Function):
    """`F.embedding` that adds only the rows it read to an existing gradient (all micro batches but the first).

    The gradient that F.embedding allocates is as large as the table and nearly all zeros. Filling and adding it took a
    third of the time of a pipeline's first stage of two layers (50,304 rows of 256, one CPU core, 8 micro batches of
    256 tokens). The result is equal to the last bit, because the gradients of each row are summed first.
    """

    @staticmethod
    def forward(ctx: Any, weight: nn.Parameter, tokens: Tensor) -> Tensor:
        # On ctx, not with save_for_backward: `backward` writes to the weight's `grad`, not to its values.
        ctx.weight, ctx.tokens = weight, tokens
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        rows, index = ctx.tokens.flatten().unique(return_inverse=True)
        sums = gradient.new_zeros(len(rows), gradient.shape[-1]).index_add_(0, index, gradient.flatten(0, -2))
        with torch.no_grad():
            ctx.weight.grad.index_add_(0, rows, sums)
        # None for the weight: its gradient has been added already.
        return None, None
