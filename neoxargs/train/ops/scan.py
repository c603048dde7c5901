"""Mamba's selective scan (Gu and Dao 2023, arXiv:2312.00752, section 3), without a CUDA kernel of its own.

Every inner channel has a state of N numbers. A token with input x, step size dt, input vector B and output vector C
changes the state h and reads it:

    h = exp(dt A) h + dt x B        y = C h + D x

The states of all tokens would be N times as large as the layer's other activations. Only those at the ends of chunks
are stored, and the backward pass computes the states of one chunk at a time again. All of it is in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.facts.mamba import CHUNK
from neoxargs.train.autograd import apply

#: Tokens in a part of a chunk; parts are scanned side by side, and then joined.
PART = 8


class Inputs(NamedTuple):
    """What the scan reads of each token and of the layer; slices of the sequence have the same form."""

    x: Tensor
    """(batch, seq, channels)"""
    steps: Tensor
    """(batch, seq, channels): the step sizes before softplus."""
    B: Tensor
    """(batch, seq, N)"""
    C: Tensor
    """(batch, seq, N)"""
    A: Tensor
    """(channels, N), negative."""
    D: Tensor
    """(channels)"""
    resets: Tensor | None
    """(batch, seq), bool: tokens before which the state is set to zero, because a document begins; None for none."""

    def chunks(self) -> Iterator[tuple[slice, Inputs]]:
        """Yield the chunks of the sequence, in the precision of the scan."""
        for start in range(0, self.x.shape[1], CHUNK):
            where = slice(start, start + CHUNK)
            x, steps, into, out = (tensor[:, where].to(self.A.dtype) for tensor in self[:4])
            resets = None if self.resets is None else self.resets[:, where]
            yield where, Inputs(x, steps, into, out, self.A, self.D, resets)


def selective_scan(inputs: Inputs, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return y (batch, seq, channels), and the state after the last token (batch, channels, N).

    state: before the first token; None for zeros.
    """
    if state is None:
        state = inputs.A.new_zeros(len(inputs.x), *inputs.A.shape)
    return apply(_Scan, state, *inputs)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, state: Tensor, *tensors: Any) -> tuple[Tensor, Tensor]:
        inputs, before = Inputs(*tensors), []
        y = torch.empty_like(inputs.x)
        with torch.autocast(y.device.type, enabled=False):
            for where, chunk in inputs.chunks():
                before.append(state)
                states = _states(chunk, _decays(chunk), state)
                y[:, where] = (states @ chunk.C.unsqueeze(-1)).squeeze(-1) + chunk.D * chunk.x
                state = states[:, -1].clone()  # a view would keep the states of the whole chunk
        ctx.save_for_backward(torch.stack(before), *inputs)
        return y, state

    @staticmethod
    def backward(ctx: Any, y_gradient: Tensor, state_gradient: Tensor) -> tuple[Tensor | None, ...]:
        before, *saved = ctx.saved_tensors
        inputs = Inputs(*saved)
        of_tokens = [torch.empty_like(tensor) for tensor in inputs[:4]]
        of_a, of_d = torch.zeros_like(inputs.A), torch.zeros_like(inputs.D)
        for number, (where, chunk) in reversed(list(enumerate(inputs.chunks()))):
            gradient = y_gradient[:, where].to(chunk.A.dtype)
            state_gradient, gradients = _chunk_gradients(chunk, before[number], gradient, state_gradient)
            for whole, part in zip(of_tokens, gradients[:4], strict=True):
                whole[:, where] = part
            of_a += gradients.A
            of_d += gradients.D
        return state_gradient, *of_tokens, of_a, of_d, None


def _chunk_gradients(chunk: Inputs, before: Tensor, y: Tensor, state: Tensor) -> tuple[Tensor, Inputs]:
    """Return the gradients of the state before a chunk, and of its inputs.

    before: that state. y, state: gradients of the chunk's outputs and of the state after it.
    """
    decays, dt = _decays(chunk), F.softplus(chunk.steps)
    states = _states(chunk, decays, before)
    of_states = y.unsqueeze(-1) * chunk.C.unsqueeze(2)
    of_states[:, -1] += state
    # A state has an effect through its own output and through the next state.
    of_states = _recurrence(decays.roll(-1, 1).flip(1), of_states.flip(1), torch.zeros_like(before)).flip(1)
    of_c = (y.unsqueeze(2) @ states).squeeze(2)
    of_inputs = (of_states @ chunk.B.unsqueeze(-1)).squeeze(-1)  # of dt x
    of_b = ((dt * chunk.x).unsqueeze(2) @ of_states).squeeze(2)
    of_before = decays[:, 0] * of_states[:, 0]
    earlier = torch.cat((before.unsqueeze(1), states[:, :-1]), 1)
    of_exponents = of_states.mul_(decays).mul_(earlier)  # of dt A
    of_dt = torch.einsum("blcn,cn->blc", of_exponents, chunk.A) + of_inputs * chunk.x
    of_a = torch.einsum("blcn,blc->cn", of_exponents, dt)
    of_x = of_inputs * dt + y * chunk.D
    of_steps = of_dt * torch.sigmoid(chunk.steps)
    return of_before, Inputs(of_x, of_steps, of_b, of_c, of_a, (y * chunk.x).sum((0, 1)), None)


def _decays(chunk: Inputs) -> Tensor:
    """Return the factors on the states: (batch, tokens, channels, N)."""
    decays = torch.exp(F.softplus(chunk.steps).unsqueeze(-1) * chunk.A)
    return decays if chunk.resets is None else decays.masked_fill_(chunk.resets[..., None, None], 0)


def _states(chunk: Inputs, decays: Tensor, before: Tensor) -> Tensor:
    """Return the state after each token: (batch, tokens, channels, N)."""
    inputs = (F.softplus(chunk.steps) * chunk.x).unsqueeze(-1) * chunk.B.unsqueeze(2)
    return _recurrence(decays, inputs, before)


def _recurrence(decays: Tensor, inputs: Tensor, before: Tensor) -> Tensor:
    """Return h of all tokens, written over `inputs`: h = decay x h of the token before + input.

    All parts of the chunk start from zero, side by side. Then the state before each part is added, decayed.
    """
    size = next(size for size in range(PART, 0, -1) if decays.shape[1] % size == 0)
    parts = inputs.unflatten(1, (-1, size))
    # The decay since the start of the part.
    since = decays.unflatten(1, (-1, size)).clone()
    for token in range(1, size):
        parts[:, :, token].addcmul_(since[:, :, token], parts[:, :, token - 1])
        since[:, :, token].mul_(since[:, :, token - 1])
    for part in range(parts.shape[1]):
        parts[:, part].addcmul_(since[:, part], before.unsqueeze(1))
        before = parts[:, part, -1]
    return inputs
