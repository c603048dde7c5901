"""Recurrent layers in the plan: bytes that they store, need for a moment, and move, for each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from neoxargs.config.config import Config
from neoxargs.facts.layer_kinds import layer_kind
from neoxargs.facts.mamba import CHUNK, STATE, TAPS, packed_width
from neoxargs.plan.given.assumptions import SINGLE
from neoxargs.plan.memory import rwkv
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.carried import Carried
from neoxargs.plan.memory.norms import inside_norm

#: Tensors as large as the states of a chunk of Mamba's scan, at most, in its backward pass.
CHUNK_TENSORS = 8
#: Times that a number of these states is read or written, in the forward and in the backward pass.
STATE_PASSES = (22, 50)
#: Further ones, where the effect of a state that comes from another rank is added.
EFFECT_PASSES = (7, 19)


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


def _mamba_stored(sizes: ActivationSizes) -> int:
    """Tensors as wide as the inner channels: what leaves in_proj (2 of them), the padded input of the convolution, what
    leaves the convolution, both activation functions, the scan and the gate, and the step sizes in fp32.

    With `selective`, the outputs of norm and activation functions are not stored.
    """
    config, inner = sizes.config, _inner(sizes)
    selective = config.recompute.checkpoint_activations == "selective"
    normed = 0 if selective else sizes.stream
    wide = sizes.tokens * inner * ((6 if selective else 8) * sizes.number_size + SINGLE)
    packed = sizes.tokens * packed_width(config) * sizes.number_size
    states = _states(sizes) // CHUNK
    if sizes.context > 1:
        states += states + _mamba_carried(sizes).stored(sizes)
    return sizes.stream + normed + inside_norm(sizes) + sizes.mask + wide + packed + states


def _mamba_transient(sizes: ActivationSizes) -> int:
    """The states of one chunk in the backward pass, with their decays and gradients: fp32 tensors of the same size."""
    chunk = min(1.0, CHUNK / sizes.row)
    return int(CHUNK_TENSORS * chunk * _states(sizes)) + 4 * sizes.tokens * _inner(sizes) * sizes.number_size


def _mamba_moved(sizes: ActivationSizes) -> tuple[int, int]:
    """Each token's state is read and written by every kernel of the scan; the backward pass computes it again."""
    passes = zip(STATE_PASSES, EFFECT_PASSES if sizes.context > 1 else (0, 0), strict=True)
    forward, backward = (sum(each) * _states(sizes) for each in passes)
    return forward, backward


def _mamba_carried(sizes: ActivationSizes) -> Carried:
    state = _inner(sizes) * STATE * SINGLE
    return Carried((TAPS - 1) * _inner(sizes) * sizes.number_size, 1, state, state)


def _states(sizes: ActivationSizes) -> int:
    """Bytes of the states of all tokens, which never exist at the same time."""
    return sizes.tokens * _inner(sizes) * STATE * SINGLE


def _inner(sizes: ActivationSizes) -> int:
    return sizes.config.mamba.mamba_inner_size // sizes.tensor


#: Kind of a recurrent layer -> its memory.
MEMORY = {
    "mamba": Memory(_mamba_stored, _mamba_transient, _mamba_moved, _mamba_carried),
    "rwkv": Memory(rwkv.stored, rwkv.transient, rwkv.moved, rwkv.carried),
}


def memory(config: Config, layer: int) -> Memory | None:
    """Return the memory of a recurrent layer; None if the layer has attention."""
    return MEMORY.get(layer_kind(config, layer))


def transient(sizes: ActivationSizes, layers: Iterable[int]) -> int:
    """Return what the backward pass of these layers needs for a moment in those that are recurrent."""
    found = (memory(sizes.config, layer) for layer in layers)
    return max((each.transient(sizes) for each in found if each), default=0)
