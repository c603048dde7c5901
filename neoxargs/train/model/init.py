"""Initial weights, drawn so that they depend on the seed and the parameter's name and on nothing else.

However the run is laid out (tensor slices, pipeline stages, ZeRO stages, number of ranks), each parameter is drawn
whole, in fp32, from a generator of its own; a rank keeps its slice. Megatron and NeoX seed per rank instead, so there
the same seed gives another model on another layout. A GPU draws other numbers than a CPU, hundreds of times as fast.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor, empty  # `empty` as it is now: deepspeed.zero.Init replaces torch.empty for a while
from torch.nn import init

from neoxargs.registry.model import Init, Shape

CPU = torch.device("cpu")
#: Fills a whole parameter (rows, columns) in place.
Draw = Callable[[Tensor, torch.Generator], Tensor]


def draw(method: str, options: Init, shape: Shape) -> Draw:
    """The distribution that `init_method` or `output_layer_init_method` names."""
    return METHODS[method](options.init_method_std, shape.num_layers, shape.hidden_size)


def values(shape: tuple[int, ...], method: Draw, seed: int, name: str, device: torch.device = CPU) -> Tensor:
    """A parameter as it stands before the first step: whole, fp32, drawn by and on `device`."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest, "big"))
    with torch.no_grad():
        return method(empty(shape, dtype=torch.float32, device=device), generator)


def first_rows(count: int, method: Draw) -> Draw:
    """Draws so many rows and leaves the others at zero: padding must not change what is drawn for the rest."""

    def fill(tensor: Tensor, generator: torch.Generator) -> Tensor:
        method(tensor[:count], generator)
        tensor[count:] = 0
        return tensor

    return fill


def zeros(tensor: Tensor, _: torch.Generator) -> Tensor:
    return tensor.zero_()


def _normal(std: float) -> Draw:
    return lambda tensor, generator: tensor.normal_(0.0, std, generator=generator)


def _orthogonal(gain: float) -> Draw:
    return lambda tensor, generator: init.orthogonal_(tensor, gain, generator=generator)


def _xavier_uniform(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return init.xavier_uniform_(tensor, generator=generator)


def _xavier_normal(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return init.xavier_normal_(tensor, generator=generator)


#: name -> distribution for (init_method_std, num_layers, hidden_size).
METHODS: dict[str, Callable[[float, int, int], Draw]] = {
    "normal": lambda std, layers, hidden: _normal(std),
    # Two branches per layer write to the residual stream; GPT-2 keeps its variance independent of the depth.
    "scaled_normal": lambda std, layers, hidden: _normal(std / math.sqrt(2 * layers)),
    # For a parallel residual, where one branch per layer does.
    "single_residual_scaled_normal": lambda std, layers, hidden: _normal(std / math.sqrt(layers)),
    # Saxe et al. 2013, arXiv:1312.6120
    "orthogonal": lambda std, layers, hidden: _orthogonal(math.sqrt(2)),
    "scaled_orthogonal": lambda std, layers, hidden: _orthogonal(math.sqrt(2 / layers)),
    # Glorot & Bengio 2010
    "xavier_uniform": lambda std, layers, hidden: _xavier_uniform,
    "xavier_normal": lambda std, layers, hidden: _xavier_normal,
    # Nguyen & Salazar 2019, arXiv:1910.05895
    "small_init": lambda std, layers, hidden: _normal(math.sqrt(2 / (5 * hidden))),
    # Wang's GPT-J: mesh-transformer-jax
    "wang_init": lambda std, layers, hidden: _normal(2 / layers / math.sqrt(hidden)),
}
