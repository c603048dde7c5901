"""States that pass from chunk to chunk of a sequence that context parallel ranks divide: of a recurrence, and the last
inputs of a convolution.

No rank waits for the one before it. Each begins its chunks with zeros; what is left of a state at the end of a chunk is
linear in that state, so the ends and the decays of all chunks, which do not grow with the sequence, determine the state
before each (Blelloch 1990, "Prefix sums and their applications"; Martin and Cundy 2018, arXiv:1709.04057). One gather
brings them to every rank, which combines those before its chunks. The backward pass does the same from the last chunk
to the first.

The samples and chunks of a rank are rows, R = B x chunks, each of L consecutive tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neoxargs.facts.context import rows_of_rank
from neoxargs.train.autograd import apply, linear
from neoxargs.train.parallel.positions import Positions
from neoxargs.train.process.collectives import gather


def rows(x: Tensor, own: Positions) -> Tensor:
    """Return the chunks of this rank's positions as rows: (B, S / ranks, …) -> (R, L, …)."""
    in_rows: Tensor = x.unflatten(1, (_count(own), -1)).flatten(0, 1)
    return in_rows


def starts_in_rows(starts_BS: Tensor, own: Positions) -> Tensor:
    """Return where the document of each of this rank's tokens begins, counted from the first token of its row, (R, L).

    starts_BS: of all positions, counted from the first token of the sample. Those of documents that go on are negative.
    """
    starts = own.of(starts_BS)
    firsts = rows(own.numbers(starts.shape[1], starts.device), own)[:, :1]
    return rows(starts, own) - firsts.repeat(len(starts_BS), 1)


def inputs_before(x: Tensor, count: int, own: Positions) -> Tensor:
    """Return the inputs of the `count` tokens before each row, zeros before a sequence: (R, L, …) -> (R, count, …).

    Collective over the ranks of `own`.
    """

    def of_row_before(x: Tensor) -> Tensor:
        return _own(_later(_of_all_chunks(x, own)), own)

    def of_row_after(gradient: Tensor) -> Tensor:
        return _own(_later(_of_all_chunks(gradient, own).flip(1)).flip(1), own)

    before = linear(x[:, -count:], of_row_before, of_row_after)
    while before.shape[1] < count:  # a row is shorter, and those before the last one are read as well
        before = linear(torch.cat((before, x), 1)[:, -count:], of_row_before, of_row_after)
    return before


def carried(ends: Tensor, decays: Tensor, own: Positions) -> Tensor:
    """Return the state before each row, zeros before a sequence: (R, …).

    ends: the state after each row if it begins with zeros, (R, …). decays: the factors on the state before a row that
    remain after it; the last dimension is that of `ends`, or 1. Collective over the ranks of `own`.
    """
    return apply(_Carried, ends, decays, own)


class _Carried(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ends: Tensor, decays: Tensor, own: Positions) -> Tensor:
        widths = ends.shape[-1], decays.shape[-1]
        ends_BC, decays_BC = _of_all_chunks(torch.cat((ends, decays), -1), own).split(widths, dim=-1)
        before = _own(_combined(ends_BC, decays_BC), own)
        ctx.save_for_backward(before, decays_BC.contiguous())
        ctx.own = own
        return before

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        before, decays_BC = ctx.saved_tensors
        gradients_BC = _of_all_chunks(gradient, ctx.own).flip(1)
        of_ends = _own(_combined(gradients_BC, decays_BC.flip(1)).flip(1), ctx.own)
        return of_ends, (of_ends * before).sum_to_size(*before.shape[:-1], decays_BC.shape[-1]), None


def _count(own: Positions) -> int:
    return rows_of_rank(own.context.size, own.context.size // own.ring)


def _of_all_chunks(x: Tensor, own: Positions) -> Tensor:
    """Gather the rows of all ranks in the order of positions: (R, …) -> (B, chunks of a sequence, …)."""
    x = x.unflatten(0, (-1, _count(own))).contiguous()
    return own.in_order(gather(x, own.context.group).transpose(0, 1).flatten(1, 2))


def _own(x_BC: Tensor, own: Positions) -> Tensor:
    """Return this rank's rows of (B, chunks of a sequence, …)."""
    return own.of(x_BC).flatten(0, 1).clone()  # a view would keep those of all ranks


def _later(x_BC: Tensor) -> Tensor:
    """Return for each chunk what belongs to the one before."""
    return torch.cat((torch.zeros_like(x_BC[:, :1]), x_BC[:, :-1]), dim=1)


def _combined(ends_BC: Tensor, decays_BC: Tensor) -> Tensor:
    """Return the state before each chunk: the decayed one before the last chunk, and the end of that chunk."""
    states = [torch.zeros_like(ends_BC[:, 0])]
    for end, decay in zip(ends_BC.unbind(1)[:-1], decays_BC.unbind(1)[:-1], strict=True):
        states.append(decay * states[-1] + end)
    return torch.stack(states, dim=1)
