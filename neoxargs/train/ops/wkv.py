"""WKV, the linear attention of RWKV-6 (Peng et al. 2024, arXiv:2404.05892), computed in chunks of time.

Each head has a state S (key width, value width), and decays d_t = exp(-exp(w_t)):

    y_t = r_t (S_{t-1} + diag(u) k_t v_t^T)        S_t = diag(d_t) S_{t-1} + k_t v_t^T

Inside a chunk, y is a product of matrices, as in attention: token t reads k_s v_s^T decayed by d_{s+1} ... d_{t-1}. As
a quotient of two cumulative products, that decay would be 0 / 0 where tokens are forgotten fast. Here it is the
exponential of a sum of log decays, which is never positive. Those of all pairs of a chunk are in memory at once. Only
the state before each segment of several chunks is stored; the backward pass computes one segment at a time anew.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.facts.rwkv import CHUNK, PIECE, SEGMENT
from neoxargs.train.ops.from_inputs import from_inputs
from neoxargs.train.ops.precision import widened
from neoxargs.train.parallel.carried import carried
from neoxargs.train.parallel.positions import Positions

#: Larger w are cut to this one, whose decay, 2e-9, is 0 beside 1 in fp32. Sums of the log decays stay precise.
LARGEST_W = 3.0


def wkv(
    r_BSNH: Tensor,
    k_BSNH: Tensor,
    v_BSNH: Tensor,
    w_BSNH: Tensor,
    u_NH: Tensor,
    state_BNHH: Tensor,
    starts_BS: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return y_BSNH and the state after the last token, both in fp32 at least.

    state_BNHH: before the first token. starts_BS: where each token's document begins, if no token may read those of
    another document.
    """
    if starts_BS is None:  # one document, which began before the first token
        starts_BS = torch.full(r_BSNH.shape[:2], -1, device=r_BSNH.device)
    sizes, tensors = _segments(r_BSNH.shape[1]), (r_BSNH, k_BSNH, v_BSNH, w_BSNH, starts_BS)
    outputs = []
    # Split, not sliced: the backward pass of each slice would fill a tensor as long as the sequence.
    for number, parts in enumerate(zip(*(torch.split(x, sizes, dim=1) for x in tensors), strict=True)):
        segment = partial(_segment, parts[-1] - sum(sizes[:number]))
        y_BSNH, state_BNHH = from_inputs(segment, *parts[:-1], u_NH, state_BNHH)
        outputs.append(y_BSNH)
    return torch.cat(outputs, dim=1), state_BNHH


def wkv_rows(
    y_BSNH: Tensor, r_BSNH: Tensor, w_BSNH: Tensor, end_BNHH: Tensor, starts_BS: Tensor | None, own: Positions
) -> Tensor:
    """Return y of rows that are this rank's chunks of sequences, (R, L, N, H) as of `carried`. Collective.

    y_BSNH, end_BNHH: what `wkv` returns for rows that begin with zeros.
    """
    pieces = torch.split(w_BSNH, PIECE, dim=1)
    log_decay_BNH = torch.stack([from_inputs(lambda w: _log_decay(w).sum(1), w_BSNH) for w_BSNH in pieces]).sum(0)
    fresh_BS = torch.zeros(r_BSNH.shape[:2], dtype=torch.bool, device=r_BSNH.device)
    if starts_BS is not None:
        fresh_BS = starts_BS >= 0
        log_decay_BNH = log_decay_BNH.masked_fill(fresh_BS[:, -1, None, None], -torch.inf)
    state_BNHH = carried(end_BNHH, log_decay_BNH.exp().unsqueeze(-1), own)
    effects = []
    for parts in zip(*(torch.split(x, PIECE, dim=1) for x in (fresh_BS, r_BSNH)), pieces, strict=True):
        effect_BSNH, state_BNHH = from_inputs(partial(_effect, parts[0]), *parts[1:], state_BNHH)
        effects.append(effect_BSNH)
    return y_BSNH + torch.cat(effects, dim=1)


def _effect(fresh_BS: Tensor, r_BSNH: Tensor, w_BSNH: Tensor, state_BNHH: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the state before the first token adds to y_BSNH, and what is left of it after the last token.

    fresh_BS: the tokens of documents that begin after that state.
    """
    with torch.autocast(r_BSNH.device.type, enabled=False):
        through_BSNH = _log_decay(w_BSNH).cumsum(1)
        before_BSNH = F.pad(through_BSNH[:, :-1], (0, 0, 0, 0, 1, 0))
        read_BSNH = widened(r_BSNH) * _decay(before_BSNH, ~fresh_BS[..., None, None])
        y_BNSH = read_BSNH.transpose(1, 2) @ state_BNHH
        return y_BNSH.transpose(1, 2), through_BSNH[:, -1].exp().unsqueeze(-1) * state_BNHH


def _log_decay(w: Tensor) -> Tensor:
    return -widened(w).clamp(max=LARGEST_W).exp()


def _segments(seq: int) -> list[int]:
    """Return the lengths of the segments: each a multiple of CHUNK, but for the last one, which may be shorter."""
    rest, last = seq % SEGMENT, seq % CHUNK
    return [size for size in (*[SEGMENT] * (seq // SEGMENT), rest - last, last) if size]


def _segment(
    starts: Tensor, r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """`wkv` of one segment: all chunks at once, (B, N, chunks, size, H), except for the states between them."""
    starts = _chunks(starts[..., None, None])  # (B, 1, chunks, size, 1), positions in the segment
    chunks, size = starts.shape[2:4]
    first, last = torch.arange(chunks, device=starts.device)[:, None, None] * size, starts[..., -1:, :]
    # Token t reads token s of its document, (…, size of t, size of s), or the state before the chunk, (…, size, 1).
    reads_token = torch.ones(size, size, dtype=torch.bool, device=starts.device).tril(-1) & (starts == starts.mT)
    reads_state = starts < first
    # The state after the chunk includes token s, (…, size, 1), or the state before the chunk, (…, 1, 1).
    has_token, has_state = starts == last, last < first
    with torch.autocast(r.device.type, enabled=False):
        r, k, v, w = (_chunks(widened(x)) for x in (r, k, v, w))
        log_decay = _log_decay(w)
        through = log_decay.cumsum(-2)  # from the start of the chunk through this token
        before = F.pad(through[..., :-1, :], (0, 0, 1, 0))  # ... through the token before it
        whole = through[..., -1:, :]
        pairs = _decay(before.unsqueeze(-2) - through.unsqueeze(-3), reads_token.unsqueeze(-1))
        scores = (r.unsqueeze(-2) * k.unsqueeze(-3) * pairs).sum(-1)  # (…, size of t, size of s)
        scores = scores + (r * widened(u)[:, None, None] * k).sum(-1).diag_embed()
        added = (k * _decay(whole - through, has_token)).mT @ v
        states = [widened(state)]
        for kept, new in zip(_decay(whole, has_state).mT.unbind(2), added.unbind(2), strict=True):
            states.append(kept * states[-1] + new)
        y = scores @ v + r * _decay(before, reads_state) @ torch.stack(states[:-1], 2)
    return y.permute(0, 2, 3, 1, 4).flatten(1, 2), states[-1]


def _decay(exponent: Tensor, visible: Tensor) -> Tensor:
    # Masked before the exponential, which would overflow for pairs in the wrong order.
    return exponent.masked_fill(~visible, -torch.inf).exp()


def _chunks(x: Tensor) -> Tensor:
    """x_BSNH -> (B, N, chunks, size, H)."""
    return x.view(len(x), -1, min(CHUNK, x.shape[1]), *x.shape[2:]).permute(0, 3, 1, 2, 4)
