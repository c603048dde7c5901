"""Recurrent layers in the plan: bytes that they store, need for a moment, and move, for each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from neoxargs.config.config import Config
from neoxargs.facts import mamba, rwkv
from neoxargs.facts.layer_kinds import layer_kind
from neoxargs.plan.given.assumptions import SINGLE
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.norms import inside_norm


class Carried(NamedTuple):
    """Bytes that pass from a chunk of a sample to the next one (train/parallel/carried.py)."""

    inputs: int
    """The last inputs of a convolution or token shift."""
    times: int
    """How often a layer has those."""
    state: int
    decay: int
    """The factors on the state before a chunk that remain after it."""

    def stored(self, sizes: ActivationSizes) -> int:
        """Return what a layer stores to send gradients back: the decays of all chunks, and its own with states."""
        return sizes.rows * (sizes.context * self.decay + self.decay + self.state)


class Memory(NamedTuple):
    """What the plan needs to know of a kind of recurrent layer: bytes of one micro batch on one rank."""

    stored: Callable[[ActivationSizes], int]
    """What the forward pass stores for the backward pass, the layer's input included."""
    transient: Callable[[ActivationSizes], int]
    """What the backward pass needs in addition, when it needs the most."""
    moved: Callable[[ActivationSizes], tuple[int, int]]
    """What kernels besides matrix products read and write, in the forward and in the backward pass."""
    carried: Callable[[ActivationSizes], Carried]
    """What passes from a chunk of a sample to the next one, with context parallelism."""


#: Tensors as large as the states of a chunk of Mamba's scan, at most, in its backward pass.
CHUNK_TENSORS = 8
#: Times that a number of these states is read or written, in the forward and in the backward pass.
STATE_PASSES = (22, 50)
#: Further ones, where the effect of a state that comes from another rank is added.
EFFECT_PASSES = (7, 19)


def _mamba_stored(sizes: ActivationSizes) -> int:
    """Tensors as wide as the inner channels: what leaves in_proj (2 of them), the padded input of the convolution, what
    leaves the convolution, both activation functions, the scan and the gate, and the step sizes in fp32.

    With `selective`, the outputs of norm and activation functions are not stored.
    """
    config, inner = sizes.config, _inner(sizes)
    selective = config.recompute.checkpoint_activations == "selective"
    normed = 0 if selective else sizes.stream
    wide = sizes.tokens * inner * ((6 if selective else 8) * sizes.number_size + SINGLE)
    packed = sizes.tokens * mamba.packed_width(config) * sizes.number_size
    states = _states(sizes) // mamba.CHUNK
    if sizes.context > 1:
        states += states + _mamba_carried(sizes).stored(sizes)
    return sizes.stream + normed + inside_norm(sizes) + sizes.mask + wide + packed + states


def _mamba_transient(sizes: ActivationSizes) -> int:
    """The states of one chunk in the backward pass, with their decays and gradients: fp32 tensors of the same size."""
    chunk = min(1.0, mamba.CHUNK / sizes.row)
    return int(CHUNK_TENSORS * chunk * _states(sizes)) + 4 * sizes.tokens * _inner(sizes) * sizes.number_size


def _mamba_moved(sizes: ActivationSizes) -> tuple[int, int]:
    """Each token's state is read and written by every kernel of the scan; the backward pass computes it again."""
    passes = zip(STATE_PASSES, EFFECT_PASSES if sizes.context > 1 else (0, 0), strict=True)
    forward, backward = (sum(each) * _states(sizes) for each in passes)
    return forward, backward


def _mamba_carried(sizes: ActivationSizes) -> Carried:
    state = _inner(sizes) * mamba.STATE * SINGLE
    return Carried((mamba.TAPS - 1) * _inner(sizes) * sizes.number_size, 1, state, state)


def _states(sizes: ActivationSizes) -> int:
    """Bytes of the states of all tokens, which never exist at the same time."""
    return sizes.tokens * _inner(sizes) * mamba.STATE * SINGLE


def _inner(sizes: ActivationSizes) -> int:
    return sizes.config.mamba.mamba_inner_size // sizes.tensor


#: Tensors as large as the decays of all pairs of a segment of RWKV, at most, in its backward pass.
PAIR_TENSORS = 6
#: fp32 tensors as wide as time mixing, at most, in the backward pass of a piece of the effect of another rank's state.
EFFECT_TENSORS = 8
#: Times that a number of these decays is read or written, in the forward and in the backward pass.
PAIR_PASSES = (9, 26)


def _rwkv_stored(sizes: ActivationSizes) -> int:
    """As wide as the residual stream: inputs of both norms, both shifted inputs and their five and two mixtures, and
    outputs of the channel mixing. As wide as time mixing: w, r, k, v, and what norm and gate read and return.
    """
    hidden, (time, channel) = sizes.config.shape.hidden_size, rwkv.rwkv_widths(sizes.config)
    numbers = 14 * hidden + 9 * time + 2 * channel + rwkv.DECAY_RANK
    states = sizes.tokens // min(rwkv.SEGMENT, sizes.row) * _state(sizes)
    if sizes.context > 1:
        states += _rwkv_carried(sizes).stored(sizes)
    return sizes.tokens * numbers * sizes.number_size + states + 2 * sizes.mask


def _rwkv_transient(sizes: ActivationSizes) -> int:
    """The backward pass of a segment, and the gradients of w, r, k and v, or those of the channel mixing if larger.

    With context parallelism, that of a piece of the effect of another rank's state can be larger than of a segment.
    """
    time, channel = rwkv.rwkv_widths(sizes.config)
    tokens = sizes.rows * min(rwkv.SEGMENT, sizes.row)  # those of all rows in one segment
    at_once = PAIR_TENSORS * _pairs(sizes, tokens) + 3 * tokens // rwkv.CHUNK * _state(sizes)
    if sizes.context > 1:
        at_once = max(at_once, EFFECT_TENSORS * sizes.rows * min(rwkv.PIECE, sizes.row) * time * SINGLE)
    mixing = at_once + 4 * sizes.tokens * time * sizes.number_size
    return max(mixing, 2 * sizes.tokens * channel * sizes.number_size)


def _rwkv_moved(sizes: ActivationSizes) -> tuple[int, int]:
    """The decays between all pairs of a chunk, which most kernels of WKV read or write."""
    forward, backward = PAIR_PASSES
    pairs = _pairs(sizes, sizes.tokens)
    return forward * pairs, backward * pairs


def _rwkv_carried(sizes: ActivationSizes) -> Carried:
    """Two token shifts, and the state of all heads with a factor for each of its rows."""
    hidden, time = sizes.config.shape.hidden_size, rwkv.rwkv_widths(sizes.config)[0]
    return Carried(hidden * sizes.number_size, 2, _state(sizes), time * SINGLE)


def _pairs(sizes: ActivationSizes, tokens: int) -> int:
    """Bytes of the decays between pairs of tokens."""
    return tokens * rwkv.CHUNK * rwkv.rwkv_widths(sizes.config)[0] * SINGLE


def _state(sizes: ActivationSizes) -> int:
    """Bytes of one state of all heads."""
    time = rwkv.rwkv_widths(sizes.config)[0]
    return time * (time // sizes.config.shape.num_attention_heads) * SINGLE


#: Kind of a recurrent layer -> its memory.
MEMORY = {
    "mamba": Memory(_mamba_stored, _mamba_transient, _mamba_moved, _mamba_carried),
    "rwkv": Memory(_rwkv_stored, _rwkv_transient, _rwkv_moved, _rwkv_carried),
}


def memory(config: Config, layer: int) -> Memory | None:
    """Return the memory of a recurrent layer; None if the layer has attention."""
    return MEMORY.get(layer_kind(config, layer))


def transient(sizes: ActivationSizes, layers: Iterable[int]) -> int:
    """Return what the backward pass of these layers needs for a moment in those that are recurrent."""
    found = (memory(sizes.config, layer) for layer in layers)
    return max((each.transient(sizes) for each in found if each), default=0)
