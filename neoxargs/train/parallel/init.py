"""Initial weights, which depend on the seed and the parameter's name only.

With any layout (tensor and pipeline parallel size, ZeRO stage, number of ranks) each parameter is drawn in full, in
fp32, from its own generator, and each rank keeps its slice. Megatron and GPT-NeoX seed per rank instead: there the same
seed gives a different model with a different layout. A GPU draws different numbers than a CPU, hundreds of times
faster, and GPUs with different numbers of multiprocessors draw different ones.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, empty  # bound at import: deepspeed.zero.Init replaces torch.empty while it is active
from torch.nn import init

from neoxargs.registry.model import Init, Shape

CPU = torch.device("cpu")
#: Fills a full, unsharded parameter (rows, columns) in place and returns it.
Initializer = Callable[[Tensor, torch.Generator], Tensor]


def initializer(method: str, options: Init, shape: Shape) -> Initializer:
    """Return the distribution that `init_method` or `output_layer_init_method` names."""
    return METHODS[method](options.init_method_std, shape.num_layers, shape.hidden_size)


def initial_values(
    shape: tuple[int, ...], method: Initializer, seed: int, name: str, device: torch.device = CPU
) -> Tensor:
    """Return the initial value of the full parameter, of the unsharded `shape`, in fp32, drawn on `device`."""
    with torch.no_grad():
        return method(empty(shape, dtype=torch.float32, device=device), _generator(seed, name, device))


def initial_matrices(
    shape: tuple[int, ...], method: Initializer, seed: int, name: str, device: torch.device = CPU
) -> Iterator[Tensor]:
    """Yield the initial values of the matrices of a stack, of the unsharded `shape` (count, rows, columns).

    They are drawn one by one into the same memory: all experts of a large model would need more than a rank has.
    """
    generator, matrix = _generator(seed, name, device), empty(shape[1:], dtype=torch.float32, device=device)
    for _ in range(shape[0]):
        with torch.no_grad():  # not around `yield`, which would leave it to the caller
            drawn = method(matrix, generator)
        yield drawn


def _generator(seed: int, name: str, device: torch.device) -> torch.Generator:
    """Return the generator of one parameter, whose values do not depend on what a rank draws before it."""
    # Not Python's hash(), which differs between processes.
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "big"))


def first_rows(count: int, method: Initializer) -> Initializer:
    """Draw the first `count` rows and set the others to zero, so that padding does not change the drawn values."""

    def fill(tensor: Tensor, generator: torch.Generator) -> Tensor:
        method(tensor[:count], generator)
        tensor[count:] = 0
        return tensor

    return fill


def zeros(tensor: Tensor, _: torch.Generator) -> Tensor:
    """The Initializer of biases; draws nothing."""
    return tensor.zero_()


def ones(tensor: Tensor, _: torch.Generator) -> Tensor:
    """The Initializer of scales; draws nothing."""
    return tensor.fill_(1)


def uniform(bound: float) -> Initializer:
    """Return the Initializer that draws from -bound to bound."""
    return _drawn(Tensor.uniform_, -bound, bound)


def normal(std: float) -> Initializer:
    """Return the Initializer that draws from a normal distribution with this standard deviation."""
    return _drawn(Tensor.normal_, 0.0, std)


def _drawn(fill: Callable[..., Tensor], *options: float) -> Initializer:
    return lambda tensor, generator: fill(tensor, *options, generator=generator)


#: Name of an init method -> function of (init_method_std, num_layers, hidden_size) that returns its distribution.
METHODS: dict[str, Callable[[float, int, int], Initializer]] = {
    "normal": lambda std, layers, hidden: normal(std),
    # GPT-2: each layer adds two branches to the residual stream, whose variance stays independent of the depth.
    "scaled_normal": lambda std, layers, hidden: normal(std / math.sqrt(2 * layers)),
    # The same for a parallel residual, where each layer adds one branch.
    "single_residual_scaled_normal": lambda std, layers, hidden: normal(std / math.sqrt(layers)),
    # Saxe et al. 2013, arXiv:1312.6120
    "orthogonal": lambda std, layers, hidden: _drawn(init.orthogonal_, math.sqrt(2)),
    "scaled_orthogonal": lambda std, layers, hidden: _drawn(init.orthogonal_, math.sqrt(2 / layers)),
    # Glorot & Bengio 2010
    "xavier_uniform": lambda std, layers, hidden: _drawn(init.xavier_uniform_),
    "xavier_normal": lambda std, layers, hidden: _drawn(init.xavier_normal_),
    # Nguyen & Salazar 2019, arXiv:1910.05895
    "small_init": lambda std, layers, hidden: normal(math.sqrt(2 / (5 * hidden))),
    # Wang's mesh-transformer-jax, which trained GPT-J
    "wang_init": lambda std, layers, hidden: normal(2 / layers / math.sqrt(hidden)),
}
