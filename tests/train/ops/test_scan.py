"""The selective scan equals the recurrence that it computes, token by token, in both directions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.facts.mamba import CHUNK
from neoxargs.train.ops.scan import Inputs, selective_scan

CHANNELS, STATE = 3, 4


def inputs(seq: int, resets: Tensor | None = None, dtype: torch.dtype = torch.float64) -> Inputs:
    torch.manual_seed(0)
    of_tokens = (torch.randn(2, seq, width, dtype=dtype) for width in (CHANNELS, CHANNELS, STATE, STATE))
    decay, skip = torch.rand(CHANNELS, STATE, dtype=dtype), torch.randn(CHANNELS, dtype=dtype)
    every = (*of_tokens, -4 * decay, skip)
    return Inputs(*(tensor.requires_grad_() for tensor in every), resets)


def token_by_token(given: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for token in range(given.x.shape[1]):
        if given.resets is not None:
            state = state * ~given.resets[:, token, None, None]
        step = F.softplus(given.steps[:, token]).unsqueeze(-1)  # (batch, channels, 1)
        x, into, out = given.x[:, token].unsqueeze(-1), given.B[:, token].unsqueeze(1), given.C[:, token].unsqueeze(1)
        state = torch.exp(step * given.A) * state + step * x * into
        outputs.append((state * out).sum(-1) + given.D * given.x[:, token])
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("seq", [1, 7, 64, 75, 129, 200])
@pytest.mark.parametrize("with_resets", [False, True])
def test_it_is_the_recurrence(seq: int, with_resets: bool) -> None:
    resets = torch.rand(2, seq) < 0.1 if with_resets else None
    given, state = inputs(seq, resets), torch.randn(2, CHANNELS, STATE, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, seq, CHANNELS, dtype=torch.float64)
    found = []
    for run in (selective_scan, token_by_token):
        y, last = run(given, state)
        gradients = torch.autograd.grad((y * weights).sum() + (3 * last).sum(), (*given[:6], state))
        found.append((y, last, *gradients))
    torch.testing.assert_close(*found)


def test_strong_decay_stays_finite() -> None:
    given = inputs(128, dtype=torch.float32)
    given = given._replace(steps=given.steps + 50)  # decays of exp(-200) for each token
    y, _ = selective_scan(given)
    torch.testing.assert_close(y, token_by_token(given, torch.zeros(2, CHANNELS, STATE))[0])
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(y.sum(), given[:6]))


def test_states_are_stored_at_the_ends_of_chunks_only() -> None:
    stored: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: stored.append(x) or x, lambda x: x):
        selective_scan(inputs(4 * CHUNK))
    assert max(x.numel() for x in stored) == 2 * 4 * CHUNK * STATE  # B and C
    assert [x.shape for x in stored if x.ndim == 4] == [(4, 2, CHANNELS, STATE)]


def test_half_precision_inputs_are_scanned_in_fp32() -> None:
    given = inputs(128, dtype=torch.float32)
    half = Inputs(*(x.detach().bfloat16() for x in given[:4]), *given[4:])
    y, state = selective_scan(half)
    exact = token_by_token(Inputs(*(x.float() for x in half[:6]), None), torch.zeros(2, CHANNELS, STATE))
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, exact[0].bfloat16())
    torch.testing.assert_close(state, exact[1])
