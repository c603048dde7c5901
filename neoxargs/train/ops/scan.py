"""Mamba's selective scan (Gu and Dao 2023, arXiv:2312.00752, section 3), without a CUDA kernel of its own.

Every inner channel has a state of M numbers. A token with input x, step size dt, input vector B and output vector C
changes the state h and reads it:

    h = exp(dt A) h + dt x B        y = C h + D x

The states of all tokens would be M times as large as the layer's other activations. Only those at the ends of chunks
are stored, and the backward pass computes the states of one chunk at a time again. All of it is in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.facts.mamba import CHUNK
from neoxargs.train.autograd import apply
from neoxargs.train.ops.from_inputs import from_inputs
from neoxargs.train.parallel.carried import carried
from neoxargs.train.parallel.positions import Positions

#: Tokens in a part of a chunk; parts are scanned side by side, and then joined.
PART = 8


class Inputs(NamedTuple):
    """What the scan reads of each token and of the layer; slices of the sequence have the same form."""

    x: Tensor
    """(B, S, I)"""
    steps: Tensor
    """(B, S, I): the step sizes before softplus."""
    B: Tensor
    """(B, S, M)"""
    C: Tensor
    """(B, S, M)"""
    A: Tensor
    """(I, M), negative."""
    D: Tensor
    """(I)"""
    resets: Tensor | None
    """(B, S), bool: tokens before which the state is set to zero, because a document begins; None for none."""

    def chunks(self) -> Iterator[tuple[slice, Inputs]]:
        """Yield the chunks of the sequence, in the precision of the scan."""
        for start in range(0, self.x.shape[1], CHUNK):
            where = slice(start, start + CHUNK)
            x, steps, into, out = (tensor[:, where].to(self.A.dtype) for tensor in self[:4])
            resets = None if self.resets is None else self.resets[:, where]
            yield where, Inputs(x, steps, into, out, self.A, self.D, resets)


def selective_scan(inputs: Inputs, state_BIM: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return y_BSI, and the state after the last token, (B, I, M).

    state_BIM: before the first token; None for zeros.
    """
    if state_BIM is None:
        state_BIM = inputs.A.new_zeros(len(inputs.x), *inputs.A.shape)
    return apply(_Scan, state_BIM, *inputs)


def scan_rows(inputs: Inputs, own: Positions) -> Tensor:
    """Return y of rows that are this rank's chunks of sequences, (R, L, I) as of `carried`. Collective.

    The scan of a row from zeros needs no other rank; then the state that came before is added to its output.
    """
    y_BSI, end_BIM = selective_scan(inputs)
    remains_BI1 = F.softplus(inputs.steps.to(inputs.A.dtype)).sum(1).unsqueeze(-1)
    decays_BIM = torch.exp(remains_BI1 * inputs.A)
    if inputs.resets is not None:
        decays_BIM = decays_BIM.masked_fill(inputs.resets.any(1)[:, None, None], 0)
    return y_BSI + effect_of_state(inputs, carried(end_BIM, decays_BIM, own)).to(y_BSI.dtype)


def effect_of_state(inputs: Inputs, state_BIM: Tensor) -> Tensor:
    """Return what the state before the first token adds to y_BSI."""
    _, steps_BSI, _, out_BSM, A_IM, _, resets_BS = inputs
    # Split, not sliced: the backward pass of each slice would fill a tensor as long as the sequence.
    steps, outs = (torch.split(x, CHUNK, dim=1) for x in (steps_BSI, out_BSM))
    resets = [None] * len(steps) if resets_BS is None else torch.split(resets_BS, CHUNK, dim=1)
    pieces = []
    for of_chunk, *tensors in zip(resets, steps, outs, strict=True):
        y_BSI, state_BIM = from_inputs(partial(_effect, of_chunk), *tensors, A_IM, state_BIM)
        pieces.append(y_BSI)
    return torch.cat(pieces, dim=1)


def _effect(
    resets_BS: Tensor | None, steps_BSI: Tensor, out_BSM: Tensor, A_IM: Tensor, state_BIM: Tensor
) -> tuple[Tensor, Tensor]:
    """Return `effect_of_state` of a chunk, and what is left of the state after it."""
    with torch.autocast(steps_BSI.device.type, enabled=False):
        since_BSI = F.softplus(steps_BSI.to(A_IM.dtype)).cumsum(1)
        states_BSIM = torch.exp(since_BSI.unsqueeze(-1) * A_IM) * state_BIM.unsqueeze(1)
        if resets_BS is not None:
            states_BSIM = states_BSIM.masked_fill(resets_BS.cummax(1).values[..., None, None], 0)
        # A view would keep the states of the whole chunk.
        return (states_BSIM @ out_BSM.to(A_IM.dtype).unsqueeze(-1)).squeeze(-1), states_BSIM[:, -1].clone()


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, state_BIM: Tensor, *tensors: Any) -> tuple[Tensor, Tensor]:
        inputs, before = Inputs(*tensors), []
        y_BSI = torch.empty_like(inputs.x)
        with torch.autocast(y_BSI.device.type, enabled=False):
            for where, chunk in inputs.chunks():
                before.append(state_BIM)
                states_BSIM = _states(chunk, _decays(chunk), state_BIM)
                y_BSI[:, where] = (states_BSIM @ chunk.C.unsqueeze(-1)).squeeze(-1) + chunk.D * chunk.x
                state_BIM = states_BSIM[:, -1].clone()  # a view would keep the states of the whole chunk
        ctx.save_for_backward(torch.stack(before), *inputs)
        return y_BSI, state_BIM

    @staticmethod
    def backward(ctx: Any, gradient_BSI: Tensor, gradient_BIM: Tensor) -> tuple[Tensor | None, ...]:
        before, *saved = ctx.saved_tensors
        inputs = Inputs(*saved)
        of_tokens = [torch.empty_like(tensor) for tensor in inputs[:4]]
        of_a_IM, of_d_I = torch.zeros_like(inputs.A), torch.zeros_like(inputs.D)
        for number, (where, chunk) in reversed(list(enumerate(inputs.chunks()))):
            y_BSI = gradient_BSI[:, where].to(chunk.A.dtype)
            gradient_BIM, gradients = _chunk_gradients(chunk, before[number], y_BSI, gradient_BIM)
            for whole, part in zip(of_tokens, gradients[:4], strict=True):
                whole[:, where] = part
            of_a_IM += gradients.A
            of_d_I += gradients.D
        return gradient_BIM, *of_tokens, of_a_IM, of_d_I, None


def _chunk_gradients(chunk: Inputs, before_BIM: Tensor, y_BSI: Tensor, state_BIM: Tensor) -> tuple[Tensor, Inputs]:
    """Return the gradients of the state before a chunk, and of its inputs.

    before_BIM: that state. y_BSI, state_BIM: gradients of the chunk's outputs and of the state after it.
    """
    decays_BSIM, dt_BSI = _decays(chunk), F.softplus(chunk.steps)
    states_BSIM = _states(chunk, decays_BSIM, before_BIM)
    of_states_BSIM = y_BSI.unsqueeze(-1) * chunk.C.unsqueeze(2)
    of_states_BSIM[:, -1] += state_BIM
    # A state has an effect through its own output and through the next state.
    of_states_BSIM = _recurrence(
        decays_BSIM.roll(-1, 1).flip(1), of_states_BSIM.flip(1), torch.zeros_like(before_BIM)
    ).flip(1)
    of_c_BSM = (y_BSI.unsqueeze(2) @ states_BSIM).squeeze(2)
    of_inputs_BSI = (of_states_BSIM @ chunk.B.unsqueeze(-1)).squeeze(-1)  # of dt x
    of_b_BSM = ((dt_BSI * chunk.x).unsqueeze(2) @ of_states_BSIM).squeeze(2)
    of_before_BIM = decays_BSIM[:, 0] * of_states_BSIM[:, 0]
    earlier_BSIM = torch.cat((before_BIM.unsqueeze(1), states_BSIM[:, :-1]), 1)
    of_exponents_BSIM = of_states_BSIM.mul_(decays_BSIM).mul_(earlier_BSIM)  # of dt A
    of_dt_BSI = torch.einsum("blcn,cn->blc", of_exponents_BSIM, chunk.A) + of_inputs_BSI * chunk.x
    of_a_IM = torch.einsum("blcn,blc->cn", of_exponents_BSIM, dt_BSI)
    of_x_BSI = of_inputs_BSI * dt_BSI + y_BSI * chunk.D
    of_steps_BSI = of_dt_BSI * torch.sigmoid(chunk.steps)
    return of_before_BIM, Inputs(
        of_x_BSI, of_steps_BSI, of_b_BSM, of_c_BSM, of_a_IM, (y_BSI * chunk.x).sum((0, 1)), None
    )


def _decays(chunk: Inputs) -> Tensor:
    """Return the factors on the states: (B, S, I, M)."""
    decays_BSIM = torch.exp(F.softplus(chunk.steps).unsqueeze(-1) * chunk.A)
    return decays_BSIM if chunk.resets is None else decays_BSIM.masked_fill_(chunk.resets[..., None, None], 0)


def _states(chunk: Inputs, decays_BSIM: Tensor, before_BIM: Tensor) -> Tensor:
    """Return the state after each token: (B, S, I, M)."""
    inputs_BSIM = (F.softplus(chunk.steps) * chunk.x).unsqueeze(-1) * chunk.B.unsqueeze(2)
    return _recurrence(decays_BSIM, inputs_BSIM, before_BIM)


def _recurrence(decays_BSIM: Tensor, inputs_BSIM: Tensor, before_BIM: Tensor) -> Tensor:
    """Return h of all tokens, written over `inputs_BSIM`: h = decay x h of the token before + input.

    All parts of the chunk start from zero, side by side. Then the state before each part is added, decayed.
    """
    size = next(size for size in range(PART, 0, -1) if decays_BSIM.shape[1] % size == 0)
    parts = inputs_BSIM.unflatten(1, (-1, size))
    # The decay since the start of the part.
    since = decays_BSIM.unflatten(1, (-1, size)).clone()
    for token in range(1, size):
        parts[:, :, token].addcmul_(since[:, :, token], parts[:, :, token - 1])
        since[:, :, token].mul_(since[:, :, token - 1])
    for part in range(parts.shape[1]):
        parts[:, part].addcmul_(since[:, part], before_BIM.unsqueeze(1))
        before_BIM = parts[:, part, -1]
    return inputs_BSIM
