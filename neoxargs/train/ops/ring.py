"""Attention over a sequence that ranks divide among them: keys and values go around, each rank keeps its queries.

A sequence is cut into twice as many chunks as there are ranks; rank r has chunks r and 2n - 1 - r, so that a causal
mask leaves all ranks the same work (Brandon et al. 2023, arXiv:2311.09431; Liu et al. 2023, arXiv:2310.01889). The
outputs of pairs of chunks are merged by their log-sum-exp; no rank holds more than its own and its neighbour's keys and
values, or the scores of more than two chunks. The backward pass sends keys and values around once more, with their
gradients, and computes the scores of each pair again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.train.autograd import apply
from neoxargs.train.parallel.positions import chunks_in_ring
from neoxargs.train.process.mesh import Axis

#: Attention of the queries of a chunk to the keys of another: (query_BNSH, key_BKSH, value_BKSH, chunk of the queries,
#: chunk of the keys) -> context_BNSH, and the log-sum-exp of each query's scores, (B, N, S), in fp32: -inf where it
#: attends to none of these keys. Differentiable in both results.
Block = Callable[[Tensor, Tensor, Tensor, int, int], tuple[Tensor, Tensor]]
#: Whether a token of one chunk may attend to a token of another: (chunk of the queries, chunk of the keys).
Sees = Callable[[int, int], bool]
#: What to do with the tensor of each rank, and with what goes around with it; keeps neither: (rank, tensor, carried).
Visit = Callable[[int, Tensor, Tensor | None], None]


def ring_attention(
    query_BNSH: Tensor, key_BKSH: Tensor, value_BKSH: Tensor, axis: Axis, block: Block, sees: Sees
) -> tuple[Tensor, Tensor]:
    """Return context_BNSH, and the log-sum-exp of each query's scores (B, N, S) in fp32. S: this rank's tokens.

    Collective: all ranks of the axis call it. Both results are differentiable.
    """
    return apply(_Ring, query_BNSH, key_BKSH, value_BKSH, axis, block, sees)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, axis: Axis, block: Block, sees: Sees
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(query.dtype, torch.float32)
        merged = torch.zeros_like(query, dtype=wide)
        lse = torch.full(query.shape[:-1], -torch.inf, dtype=wide, device=query.device)

        def visit(source: int, both: Tensor, _: Tensor | None) -> None:
            keys, values = both
            for rows, columns, own, theirs in _pairs(axis, source, sees, query.shape[-2]):
                found, found_lse = block(
                    query[..., own, :], keys[..., theirs, :], values[..., theirs, :], rows, columns
                )
                both_lse = torch.logaddexp(lse[..., own], found_lse)
                # Of a query that has seen no key yet, both are -inf.
                base = both_lse.masked_fill(both_lse == -torch.inf, 0.0)
                before, share = (torch.exp(each - base).unsqueeze(-1) for each in (lse[..., own], found_lse))
                merged[..., own, :] = merged[..., own, :] * before + found * share
                lse[..., own] = both_lse

        _go_around(axis, key, value, visit)
        context = merged.to(query.dtype)
        ctx.save_for_backward(query, key, value, context, lse)
        ctx.ring = axis, block, sees
        return context, lse

    @staticmethod
    def backward(ctx: Any, of_context: Tensor, of_lse: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, context, lse = ctx.saved_tensors
        axis, block, sees = ctx.ring
        of_query = torch.zeros_like(query, dtype=lse.dtype)

        def add_gradients(rows: int, columns: int, own: slice, theirs: slice, both: Tensor, carried: Tensor) -> None:
            parts = query[..., own, :], *both[..., theirs, :]
            inputs = [each.detach().requires_grad_() for each in parts]
            with torch.enable_grad():
                found, found_lse = block(*inputs, rows, columns)
            share = torch.exp(found_lse.detach() - lse[..., own])
            given = of_context[..., own, :].to(lse.dtype)
            # The share of a pair grows with its log-sum-exp, at the expense of the others'.
            change = (given * (found.detach() - context[..., own, :])).sum(-1) + of_lse[..., own]
            of_results = (given * share.unsqueeze(-1)).to(found.dtype), share * change
            grads = torch.autograd.grad((found, found_lse), inputs, of_results)
            of_query[..., own, :] += grads[0]
            carried[0][..., theirs, :] += grads[1]
            carried[1][..., theirs, :] += grads[2]

        def visit(source: int, both: Tensor, carried: Tensor | None) -> None:
            assert carried is not None
            for pair in _pairs(axis, source, sees, query.shape[-2]):
                add_gradients(*pair, both, carried)

        of_both = _go_around(axis, key, value, visit, lse.dtype)
        assert of_both is not None
        return of_query.to(query.dtype), of_both[0].to(key.dtype), of_both[1].to(value.dtype), None, None, None


def _pairs(axis: Axis, source: int, sees: Sees, seq: int) -> Iterator[tuple[int, int, slice, slice]]:
    """Yield the chunks of this rank and of another that see each other, each with its place in a rank's tokens."""
    halves = slice(0, seq // 2), slice(seq // 2, seq)
    for rows, own in zip(chunks_in_ring(axis.rank, axis.size), halves, strict=True):
        for columns, theirs in zip(chunks_in_ring(source, axis.size), halves, strict=True):
            if sees(rows, columns):
                yield rows, columns, own, theirs


def _go_around(
    axis: Axis, key: Tensor, value: Tensor, visit: Visit, gradients: torch.dtype | None = None
) -> Tensor | None:
    """Visit each rank's keys and values, beginning with this one's, while the next ones are on their way.

    gradients: the type of theirs, which go around with them, after what `visit` adds. Returns what has come back.
    """
    # Made here: an argument may live as long as the call, and each of these is freed when the next one has arrived.
    held = torch.stack((key, value))
    carried = None if gradients is None else torch.zeros_like(held, dtype=gradients)
    for step in range(axis.size):
        following, messages = (held, []) if step == axis.size - 1 else _pass_on(axis, held)
        visit((axis.rank - step) % axis.size, held, carried)
        arriving = carried
        if carried is not None and axis.size > 1:
            arriving, more = _pass_on(axis, carried)
            messages += more
        while messages:  # a message holds what it sends
            messages.pop().wait()
        held, carried = following, arriving
    return carried


def _pass_on(axis: Axis, sent: Tensor) -> tuple[Tensor, list[Any]]:
    """Send a tensor to the next rank, and return where that of the rank before arrives, with what to wait for."""
    assert axis.group is not None
    received = torch.empty_like(sent)
    following, before = ((axis.rank + step) % axis.size for step in (1, -1))
    ranks = [dist.get_global_rank(axis.group, each) for each in (following, before)]
    return received, dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, sent.contiguous(), ranks[0], axis.group),
            dist.P2POp(dist.irecv, received, ranks[1], axis.group),
        ]
    )
