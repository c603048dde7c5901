"""Tensor parallelism, put into the model from outside: a module asks its `Make` for layers and gets parallel ones.

Column layers hold a slice of the outputs, row layers a slice of the inputs; a column layer, anything element-wise
and a row layer after it cost one all-reduce forward and one backward (Shoeybi et al. 2019, arXiv:1909.08053).
These are our own and not megatron-core's, because megatron-core's add the bias in a second pass, draw initial
values by rank, return tuples, and keep an empty extra state in every checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.train.model.init import CPU, Draw, values, zeros
from neoxargs.train.model.widths import Widths
from neoxargs.train.parallel.communicate import copy_and_multiply, gather_and_multiply, leave_region, sum_gradients
from neoxargs.train.process.mesh import ALONE, Axis


class Cut(NamedTuple):
    """How a weight is shared out, and which share this is: `rank` of `size` along `dimension` of each of the parts."""

    dimension: int
    parts: int
    rank: int
    size: int


@dataclass(frozen=True)
class Make:
    """Makes parameters and the layers around them for one tensor parallel rank.

    `make.at("mlp")` makes what is called `mlp.…`; the name decides the initial values.
    """

    seed: int = 1234
    tensor: Axis = ALONE
    device: torch.device = CPU
    """Where initial values are drawn; the parameters themselves are born wherever new tensors are."""
    sequence_parallel: bool = False
    widths: Widths | None = None
    """With muP, what initial values are scaled by."""
    partial: bool = False
    """Row layers leave it to whoever uses them to add their results up over the ranks."""
    path: str = ""

    def at(self, name: str) -> Make:
        return replace(self, path=self._name(name))

    @property
    def shards(self) -> Axis:
        """The ranks that share out a sequence between two parallel regions: the tensor parallel ones, or each alone."""
        return self.tensor if self.sequence_parallel else ALONE

    def parameter(
        self, name: str, shape: tuple[int, ...], method: Draw, split: int | None = None, parts: int = 1
    ) -> nn.Parameter:
        """This rank's slice along dimension `split` of a parameter that is `shape` over all ranks together.

        Of several equal `parts` along that dimension (a gate and what it gates) the slice has its share of each.

        It is born with its value. deepspeed.zero.Init (ZeRO-3) partitions a module's parameters when the module's
        constructor returns: drawing values afterwards would write into tensors of size 0, without an error, and a
        model left at zeros has no gradient and stays at a loss of ln(vocabulary) for ever.
        """
        # As the surroundings want new tensors: deepspeed.zero.Init and torch.device() set device and dtype.
        like = torch.empty(0)
        whole = values(shape, method, self.seed, self._name(name), self.device)
        if self.widths is not None:
            whole *= self.widths.deviation(self._name(name), shape)
        mine = whole if split is None else torch.cat([self._slice(x, split) for x in whole.chunk(parts, split)], split)
        # A copy: a slice would keep the whole alive, and torch's fused AdamW misreads weights that are not contiguous.
        parameter = nn.Parameter(mine.to(like.device, like.dtype).clone(memory_format=torch.contiguous_format))
        # DeepSpeed and Megatron count a gradient that every tensor parallel rank repeats once in the norm.
        parameter.tensor_model_parallel = split is not None  # type: ignore[attr-defined]
        if split is not None:
            cut = Cut(split, parts, self.tensor.rank, self.tensor.size)
            parameter.cut = cut  # type: ignore[attr-defined]
        return parameter

    def column(
        self, name: str, inputs: int, outputs: int, method: Draw, bias: bool = True, parts: int = 1
    ) -> ColumnLinear:
        return ColumnLinear(inputs, outputs, method, bias, self.at(name), parts)

    def row(self, name: str, inputs: int, outputs: int, method: Draw, bias: bool = True) -> RowLinear:
        return RowLinear(inputs, outputs, method, bias, self.at(name))

    def _slice(self, whole: Tensor, split: int) -> Tensor:
        return whole.chunk(self.tensor.size, split)[self.tensor.rank]

    def _name(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


class Shapes(Make):
    """Makes weights that have nothing but a shape, in no time."""

    def parameter(
        self, name: str, shape: tuple[int, ...], method: Draw, split: int | None = None, parts: int = 1
    ) -> nn.Parameter:
        sizes = [size // (self.tensor.size if d == split else 1) for d, size in enumerate(shape)]
        return nn.Parameter(torch.empty(sizes, device="meta"))


class ColumnLinear(nn.Module):
    """(…, inputs), the same on every rank -> (…, outputs / ranks), a share of each of its `parts`.

    With sequence parallelism a shard goes in: (batch, seq / ranks, inputs) -> (batch, seq, outputs / ranks).
    """

    def __init__(self, inputs: int, outputs: int, method: Draw, bias: bool, make: Make, parts: int = 1) -> None:
        super().__init__()
        self.tensor, self.shards = make.tensor, make.shards
        self.weight = make.parameter("weight", (outputs, inputs), method, split=0, parts=parts)
        self.bias = make.parameter("bias", (outputs,), zeros, split=0, parts=parts) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.shards.size > 1:
            return gather_and_multiply(x, self.weight, self.bias, self.shards)
        return copy_and_multiply(x, self.weight, self.bias, self.tensor)


class RowLinear(nn.Module):
    """(…, inputs / ranks) -> (…, outputs), the same on every rank; with sequence parallelism a shard comes out.

    If `make.partial`, what comes out is one summand of it.
    """

    def __init__(self, inputs: int, outputs: int, method: Draw, bias: bool, make: Make) -> None:
        super().__init__()
        self.tensor, self.shards = make.tensor, make.shards
        self.weight = make.parameter("weight", (outputs, inputs), method, split=1)
        self.bias = make.parameter("bias", (outputs,), zeros) if bias else None
        self.partial = make.partial
        if self.bias is not None and not self.partial:
            sum_gradients([self.bias], self.shards)

    def forward(self, x: Tensor) -> Tensor:
        if self.tensor.size == 1:
            return F.linear(x, self.weight, self.bias)
        y = F.linear(x, self.weight)
        if self.partial:
            return y if self.bias is None else y + _share(self.bias, self.tensor.size)
        y = leave_region(y, self.tensor, self.shards)
        return y if self.bias is None else y + self.bias  # once, not once per rank


def _share(bias: Tensor, ranks: int) -> Tensor:
    """One of so many equal summands of the bias, with the bias' own gradient: the sum's goes to every rank."""
    return bias.detach() / ranks + (bias - bias.detach())


class VocabEmbedding(nn.Module):
    """Tokens (…) -> (…, hidden), or a shard of it: each rank looks up the tokens whose rows it holds."""

    def __init__(self, rows: int, hidden: int, method: Draw, make: Make) -> None:
        super().__init__()
        self.tensor, self.shards = make.tensor, make.shards
        self.weight = make.parameter("weight", (rows, hidden), method, split=0)
        #: Nobody waits for the weight's gradient until all micro batches of a step have added to it.
        self.adds_rows = False

    def forward(self, tokens: Tensor) -> Tensor:
        if self.tensor.size == 1:
            return self._look_up(tokens)
        rows = self.weight.shape[0]
        local = tokens - self.tensor.rank * rows
        elsewhere = (local < 0) | (local >= rows)
        found = self._look_up(local.masked_fill(elsewhere, 0))
        return leave_region(found.masked_fill(elsewhere.unsqueeze(-1), 0), self.tensor, self.shards)

    def _look_up(self, tokens: Tensor) -> Tensor:
        if self.adds_rows and self.weight.grad is not None and torch.is_grad_enabled():
            return _AddRows.apply(self.weight, tokens)  # type: ignore[no-untyped-call, no-any-return]
        return F.embedding(tokens, self.weight)


class _AddRows(torch.autograd.Function):
    """`F.embedding` for all micro batches of a step but the first: adds to the gradient only the rows that were read.

    A gradient of its own would be as large as the table, nearly all zeros, to be filled and then added: with 50,304
    rows of 256, a third of the time of a pipeline's first stage of two layers (one CPU core, 8 micro batches of 256
    tokens). The sum is the same to the last bit, because each row's share is summed up first.
    """

    @staticmethod
    def forward(ctx: Any, weight: nn.Parameter, tokens: Tensor) -> Tensor:
        ctx.weight, ctx.tokens = weight, tokens
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        rows, place = ctx.tokens.flatten().unique(return_inverse=True)
        shares = gradient.new_zeros(len(rows), gradient.shape[-1]).index_add_(0, place, gradient.flatten(0, -2))
        with torch.no_grad():
            ctx.weight.grad.index_add_(0, rows, shares)
        return None, None
