"""The adapters of LoRA: which matrices of a layer have them, and their shapes.

A fused matrix, such as that of queries, keys and values, has one adapter for all of its rows, or one for some of its
parts. Its rows are `groups` times one block of rows for each part: a group of attention heads after the other, or, in a
gated MLP, once the value and once the gate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from neoxargs.config.config import Config
from neoxargs.facts.attention import attention_width, head_dim, qkv_rows
from neoxargs.facts.model import GATED, mlp_rows, mlp_width, weights_of_layers

#: Name of an adapter for all rows of a matrix.
ALL = "all"
#: Value of `lora.targets` -> the matrix in a layer, and the part of it; ALL means the matrix as a whole.
NAMES = {
    "query_key_value": ("attention.query_key_value", ALL), "q_proj": ("attention.query_key_value", "query"),
    "k_proj": ("attention.query_key_value", "key"), "v_proj": ("attention.query_key_value", "value"),
    "dense": ("attention.dense", ALL), "o_proj": ("attention.dense", ALL),
    "dense_h_to_4h": ("mlp.dense_h_to_4h", ALL), "up_proj": ("mlp.dense_h_to_4h", "up"),
    "gate_proj": ("mlp.dense_h_to_4h", "gate"),
    "dense_4h_to_h": ("mlp.dense_4h_to_h", ALL), "down_proj": ("mlp.dense_4h_to_h", ALL),
}  # fmt: skip
#: The matrices of a layer.
MODULES = tuple(dict.fromkeys(module for module, _ in NAMES.values()))
#: What `all-linear` stands for.
ALL_LINEAR = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")


class Part(NamedTuple):
    """Rows of a fused matrix that can have an adapter of their own."""

    name: str
    rows: int
    """Number of rows in each group."""


class Target(NamedTuple):
    """A matrix with adapters."""

    module: str
    """The name of the matrix within a layer, such as `attention.dense`."""
    inputs: int
    outputs: int
    cuts_inputs: bool
    """Whether tensor parallelism splits the matrix along its inputs rather than its outputs."""
    groups: int
    parts: tuple[Part, ...]
    """All parts of the matrix, in the order of their rows in a group; a single part if the matrix is not fused."""
    adapted: tuple[str, ...]
    """Names of the parts that have an adapter; ALL stands for one adapter for the whole matrix."""

    def rows(self, adapter: str) -> int:
        """Return the rows of an adapter's B."""
        return self.outputs if adapter == ALL else self.groups * dict(self.parts)[adapter]

    def slices(self, adapter: str) -> int:
        """Return how many equal parts of B's rows tensor parallel ranks slice one by one (see Weights.parameter)."""
        return len(self.parts) if adapter == ALL and self.module.startswith("mlp.") else 1

    @property
    def smallest_side(self) -> int:
        """The largest rank that the change of every adapted part of the matrix can have."""
        return min(self.inputs, *map(self.rows, self.adapted))

    def elements(self, rank: int) -> int:
        """Return the number of elements of all adapters."""
        return sum(rank * (self.inputs + self.rows(adapter)) for adapter in self.adapted)


def scale(config: Config) -> float:
    """Return the factor on the output of the adapters."""
    options = config.lora
    return options.alpha / (math.sqrt(options.rank) if options.rank_stabilized else options.rank)


def adapted_parts(targets: Sequence[str], gated: bool) -> dict[str, tuple[str, ...]]:
    """Return the matrices with adapters -> the parts with an adapter, in the order of the model."""
    names = [name for target in targets for name in (ALL_LINEAR if target == "all-linear" else (target,))]
    pairs = {NAMES[name] for name in names}
    if not gated and ("mlp.dense_h_to_4h", "up") in pairs:  # the only part
        pairs = pairs - {("mlp.dense_h_to_4h", "up")} | {("mlp.dense_h_to_4h", ALL)}
    order = list(dict.fromkeys(NAMES.values()))
    found: dict[str, tuple[str, ...]] = {}
    for module, part in sorted(pairs, key=order.index):
        found[module] = (*found.get(module, ()), part)
    return found


def targets(config: Config) -> list[Target]:
    """Return the matrices of one layer that have adapters; none without LoRA."""
    if not config.lora.rank:
        return []
    found = adapted_parts(config.lora.targets, config.mlp.activation in GATED)
    return [target(config, module, adapted) for module, adapted in found.items()]


def parameters(config: Config) -> int:
    """Return the number of trained parameters of all adapters."""
    layers = len(set(weights_of_layers(config.shape)))
    return layers * sum(each.elements(config.lora.rank) for each in targets(config))


def target(config: Config, module: str, adapted: tuple[str, ...] = ()) -> Target:
    """Return a matrix of every layer, by its name in a layer. adapted: its parts with an adapter."""
    hidden, width = config.shape.hidden_size, mlp_width(config.shape, config.mlp)
    parts: tuple[Part, ...]
    if module == "attention.dense":
        return Target(module, attention_width(config.shape), hidden, True, 1, (Part(ALL, hidden),), adapted)
    if module == "mlp.dense_4h_to_h":
        return Target(module, width, hidden, True, 1, (Part(ALL, hidden),), adapted)
    if module == "mlp.dense_h_to_4h":
        gated = config.mlp.activation in GATED
        parts = (Part("up", width), Part("gate", width)) if gated else (Part(ALL, width),)
        return Target(module, hidden, mlp_rows(config), False, 1, parts, adapted)
    groups, size = config.shape.num_kv_heads, head_dim(config.shape)
    queries = config.shape.num_attention_heads // groups
    parts = (Part("query", queries * size), Part("key", size), Part("value", size))
    return Target(module, hidden, qkv_rows(config), False, groups, parts, adapted)
