"""RWKV layers in the plan: bytes of one micro batch that they store, need for a moment, and move.

The names are those of `Memory` in recurrent.py; the tensors are those of `train/model/blocks/rwkv.py`.
"""

from __future__ import annotations

from neoxargs.facts.rwkv import CHUNK, DECAY_RANK, PIECE, SEGMENT, rwkv_widths
from neoxargs.plan.given.assumptions import SINGLE
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.carried import Carried

#: Tensors as large as the decays of all pairs of a segment, at most, in its backward pass.
PAIR_TENSORS = 6
#: fp32 tensors as wide as time mixing, at most, in the backward pass of a piece of the effect of another rank's state.
EFFECT_TENSORS = 8
#: Times that a number of these decays is read or written, in the forward and in the backward pass.
PAIR_PASSES = (9, 26)


def stored(sizes: ActivationSizes) -> int:
    """As wide as the residual stream: inputs of both norms, both shifted inputs and their five and two mixtures, and
    outputs of the channel mixing. As wide as time mixing: w, r, k, v, and what norm and gate read and return.
    """
    hidden, (time, channel) = sizes.config.shape.hidden_size, rwkv_widths(sizes.config)
    numbers = 14 * hidden + 9 * time + 2 * channel + DECAY_RANK
    states = sizes.tokens // _segment_length(sizes) * _state(sizes)
    if sizes.context > 1:
        states += carried(sizes).stored(sizes)
    return sizes.tokens * numbers * sizes.number_size + states + 2 * sizes.mask


def transient(sizes: ActivationSizes) -> int:
    """The backward pass of a segment, and the gradients of w, r, k and v, or those of the channel mixing if larger.

    With context parallelism, that of a piece of the effect of another rank's state can be larger than of a segment.
    """
    time, channel = rwkv_widths(sizes.config)
    states = 3 * _segment_tokens(sizes) // CHUNK * _state(sizes)
    at_once = PAIR_TENSORS * _pairs(sizes, _segment_tokens(sizes)) + states
    if sizes.context > 1:
        at_once = max(at_once, EFFECT_TENSORS * sizes.rows * min(PIECE, sizes.row) * time * SINGLE)
    mixing = at_once + 4 * sizes.tokens * time * sizes.number_size
    return max(mixing, 2 * sizes.tokens * channel * sizes.number_size)


def moved(sizes: ActivationSizes) -> tuple[int, int]:
    """The decays between all pairs of a chunk, which most kernels of WKV read or write."""
    forward, backward = PAIR_PASSES
    pairs = _pairs(sizes, sizes.tokens)
    return forward * pairs, backward * pairs


def carried(sizes: ActivationSizes) -> Carried:
    """Two token shifts, and the state of all heads with a factor for each of its rows."""
    hidden, time = sizes.config.shape.hidden_size, rwkv_widths(sizes.config)[0]
    return Carried(hidden * sizes.number_size, 2, _state(sizes), time * SINGLE)


def _pairs(sizes: ActivationSizes, tokens: int) -> int:
    """Bytes of the decays between pairs of tokens."""
    return tokens * CHUNK * rwkv_widths(sizes.config)[0] * SINGLE


def _state(sizes: ActivationSizes) -> int:
    """Bytes of one state of all heads."""
    time = rwkv_widths(sizes.config)[0]
    return time * (time // sizes.config.shape.num_attention_heads) * SINGLE


def _segment_length(sizes: ActivationSizes) -> int:
    return min(SEGMENT, sizes.row)


def _segment_tokens(sizes: ActivationSizes) -> int:
    """Tokens of all rows in one segment."""
    return sizes.rows * _segment_length(sizes)
