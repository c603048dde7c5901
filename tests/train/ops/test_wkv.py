"""WKV in chunks of time equals its formula, token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from neoxargs.facts.rwkv import CHUNK, SEGMENT
from neoxargs.train.ops.wkv import wkv


def by_token(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, state: Tensor, starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence as in Peng et al. 2024, equations 18 and 19."""
    outputs = []
    for t in range(r.shape[1]):
        if starts is not None:
            state = torch.where((starts[:, t] == t)[:, None, None, None], 0.0, state)
        now = k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((r[:, t, :, None, :] @ (state + u[..., None] * now)).squeeze(-2))
        state = (-w[:, t, :, :, None].exp()).exp() * state + now
    return torch.stack(outputs, 1), state


def inputs(seq: int, spread: float = 1.0) -> list[Tensor]:
    torch.manual_seed(seq)
    batch, heads, width = 2, 3, 4
    r, k, v, w = (torch.randn(batch, seq, heads, width) for _ in range(4))
    drawn = [r, k, v, w * spread, torch.randn(heads, width), torch.randn(batch, heads, width, width)]
    return [x.requires_grad_() for x in drawn]


@pytest.mark.parametrize("seq", [1, 5, CHUNK, CHUNK + 1, SEGMENT, SEGMENT + CHUNK + 3])
@pytest.mark.parametrize("documents", [False, True])
def test_chunks_equal_the_recurrence_forward_and_backward(seq: int, documents: bool) -> None:
    given = inputs(seq)
    starts = torch.zeros(2, seq, dtype=torch.int64)
    for first in (3, CHUNK, 2 * CHUNK - 1, SEGMENT, SEGMENT + 1) if documents else ():
        starts[1, first:] = first
    starts[0] -= 1  # in the first row, the first token goes on with the document of the state
    where = starts if documents else None
    both = wkv(*given, where), by_token(*given, where)
    _assert_same(both, given, 1e-4)


def test_decays_to_almost_0_and_to_almost_1_are_exact() -> None:
    given = inputs(2 * SEGMENT, spread=6.0)
    assert given[3].min() < -12 and given[3].max() > 12  # decays of 0.999995 and of exp(-160,000), which is 0 in fp64
    _assert_same((wkv(*given), by_token(*given)), given, 1e-3)


def _assert_same(both: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]], given: list[Tensor], within: float) -> None:
    torch.testing.assert_close(*both, rtol=within, atol=within)
    weights = [torch.randn_like(x) for x in both[0]]
    gradients = (torch.autograd.grad([*result], given, weights) for result in both)
    torch.testing.assert_close(*gradients, rtol=within, atol=within)
