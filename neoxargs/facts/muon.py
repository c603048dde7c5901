"""The matrices that Muon makes orthogonal, and the floating point operations of that.

A test compares the counts with those of `train/optim/muon.py` in a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from neoxargs.config.config import Config
from neoxargs.facts.lora import Target, target
from neoxargs.facts.model import GATED, has_dense_network, has_experts, mlp_width


class Matrices(NamedTuple):
    """Matrices of a layer with the same shape."""

    number: int
    rows: int
    columns: int
    of_experts: bool = False


def muon_matrices(config: Config, layer: int) -> Iterator[Matrices]:
    """Yield the matrices of a layer with attention that Muon updates."""
    qkv = target(config, "attention.query_key_value")
    yield from _parts(qkv) if config.optimizer_params.split_qkv else [Matrices(1, qkv.outputs, qkv.inputs)]
    yield from _parts(target(config, "attention.dense"))
    if not has_experts(config, layer):
        yield from _network(config)
        return
    moe, hidden = config.moe, config.shape.hidden_size
    yield Matrices(1, moe.moe_num_experts, hidden)
    for each in _network(config):
        yield each._replace(number=each.number * moe.moe_num_experts, of_experts=True)
    if moe.moe_num_shared_experts:
        yield from _network(config, moe.moe_num_shared_experts)
    if has_dense_network(config):
        yield from _network(config)
        yield Matrices(1, 2, hidden)


def _network(config: Config, times: int = 1) -> Iterator[Matrices]:
    """Yield the matrices of a feed-forward network, so many times as wide as that of a layer."""
    hidden, width = config.shape.hidden_size, times * mlp_width(config.shape, config.mlp)
    yield Matrices(2 if config.mlp.activation in GATED else 1, width, hidden)
    yield Matrices(1, hidden, width)


def _parts(of: Target) -> Iterator[Matrices]:
    return (Matrices(1, of.groups * part.rows, of.inputs) for part in of.parts)


def flops(each: Matrices, gram: bool, steps: int) -> int:
    """Return the operations of the products of the Newton-Schulz iteration (`orthogonal` in train/optim/muon.py)."""
    less, more = sorted((each.rows, each.columns))
    if gram:
        return each.number * (4 * less**2 * more + steps * 8 * less**3)
    return each.number * steps * (4 * less**2 * more + 2 * less**3)
