"""Recurrent layers in the plan: bytes that they store, need for a moment, and move, for each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from neoxargs.resolve.config import Config
from neoxargs.sizes.kinds import has_attention, layer_kind
from neoxargs.tools.plan.memory.activation_sizes import ActivationSizes


class Memory(NamedTuple):
    """What the plan needs to know of a kind of recurrent layer: bytes of one micro batch on one rank."""

    stored: Callable[[ActivationSizes], int]
    """What the forward pass stores for the backward pass, the layer's input included."""
    transient: Callable[[ActivationSizes], int]
    """What the backward pass needs in addition, when it needs the most."""
    moved: Callable[[ActivationSizes], tuple[int, int]]
    """What kernels besides matrix products read and write, in the forward and in the backward pass."""


#: Kind of a recurrent layer -> its memory.
MEMORY: dict[str, Memory] = {}


def memory(config: Config, layer: int) -> Memory | None:
    """Return the memory of a recurrent layer; None if the layer has attention."""
    return None if has_attention(config, layer) else MEMORY[layer_kind(config, layer)]


def transient(sizes: ActivationSizes, layers: Iterable[int]) -> int:
    """Return what the backward pass of these layers needs for a moment in those that are recurrent."""
    found = (memory(sizes.config, layer) for layer in layers)
    return max((each.transient(sizes) for each in found if each), default=0)
