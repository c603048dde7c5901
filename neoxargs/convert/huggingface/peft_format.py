"""Adapters in peft's format: a folder with `adapter_config.json` and `adapter_model.safetensors`.

peft has an adapter for each of its model's modules. Where their modules are parts of a matrix of ours (Llama's q_proj),
each has our adapter of that part, or its rows of our adapter of the whole matrix. Where their module is the whole
matrix (GPT-NeoX's query_key_value), our adapters of its parts become one adapter whose rank is the sum of theirs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.convert.huggingface.family import Family
from neoxargs.convert.huggingface.forms import TRANSPOSED, TRANSPOSED_HEADS, Form, Sizes
from neoxargs.facts.lora import ALL, Target, targets
from neoxargs.train.model.lora.adapters import MODULE, assembled

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
#: Prefix of the names of all tensors: peft's model, and the model in it.
PREFIX = "base_model.model."


class Pair(NamedTuple):
    """The matrices of an adapter."""

    A: Tensor
    """(rank, inputs)"""
    B: Tensor
    """(rows, rank)"""


class Matrix(NamedTuple):
    """A matrix of ours with adapters, and their modules with the same rows."""

    name: str
    """The name of the module in our model, such as `layers.0.attention.dense`."""
    target: Target
    theirs: tuple[str, ...]
    """The names of the corresponding modules in transformers, with the prefix of the family."""
    form: Form

    def weight(self, adapter: str, letter: str) -> str:
        """Return the name of one of our weights. letter: `A` or `B`."""
        return f"{self.name}.{MODULE}.{adapter}.{letter}"


def matrices(config: Config, family: Family, of_layer: Sequence[Target] | None = None) -> Iterator[Matrix]:
    """Yield the matrices with adapters, in the order of the model. of_layer: others of each layer instead."""
    by_name = {target.module: target for target in (targets(config) if of_layer is None else of_layer)}
    for ours, theirs, form, _ in family.modules(config.shape.num_layers, tied=True):
        target = by_name.get(re.sub(r"^layers\.\d+\.", "", ours))
        if target is not None:
            yield Matrix(ours, target, tuple(family.prefix + name for name in theirs), form)


def to_theirs(matrix: Matrix, ours: Mapping[str, Pair], sizes: Sizes) -> dict[str, Pair]:
    """Return their adapters, by module. ours: by part."""
    names = [part.name for part in matrix.target.parts]
    if ALL in ours:
        A, B = ours[ALL]
        parts = _rows_of_theirs(matrix.form, B, sizes)
        return {name: Pair(A, rows) for name, rows in zip(matrix.theirs, parts, strict=True)}
    if len(matrix.theirs) > 1:
        return {name: ours[part] for name, part in zip(matrix.theirs, names, strict=True) if part in ours}
    rows = [assembled(matrix.target, {part: pair.B.t()}).t() for part, pair in ours.items()]
    # The sum of several products B A is one product of the matrices side by side.
    together = torch.cat([_rows_of_theirs(matrix.form, part, sizes)[0] for part in rows], dim=1)
    return {matrix.theirs[0]: Pair(torch.cat([pair.A for pair in ours.values()]), together)}


def to_ours(matrix: Matrix, theirs: Mapping[str, Pair], sizes: Sizes) -> dict[str, Pair]:
    """Return our adapters, by part: ALL if their module is the whole matrix. theirs: by module."""
    if len(matrix.theirs) == 1:
        A, B = theirs[matrix.theirs[0]]
        B = matrix.form.to_ours([B.t() if _is_transposed(matrix.form) else B], sizes)
        return {ALL: Pair(A, B.contiguous())}
    names = [part.name for part in matrix.target.parts]
    return {part: theirs[name] for part, name in zip(names, matrix.theirs, strict=True) if name in theirs}


def _rows_of_theirs(form: Form, B: Tensor, sizes: Sizes) -> list[Tensor]:
    parts = form.to_theirs(B, sizes)
    return [part.t() for part in parts] if _is_transposed(form) else parts


def _is_transposed(form: Form) -> bool:
    """Whether their matrices are (inputs, outputs), as GPT-2's are; an adapter's B is (rows, rank) for them as well."""
    return form in (TRANSPOSED, TRANSPOSED_HEADS)


def adapter_config(config: Config, family: Family, base: str | None) -> dict[str, Any]:
    """Return the contents of adapter_config.json. base: the model's folder or its name on the Hub."""
    options, found = config.lora, list(matrices(config, family))
    stacked = {
        matrix.theirs[0]: len(matrix.target.adapted)
        for matrix in found
        if len(matrix.theirs) == 1 and ALL not in matrix.target.adapted
    }
    # An adapter's scale is alpha / rank (or alpha / sqrt(rank)): a sum of ranks needs as much more alpha.
    growth = math.sqrt if options.rank_stabilized else float
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "inference_mode": True,
        "r": options.rank, "lora_alpha": _int_if_whole(options.alpha), "lora_dropout": options.dropout,
        "use_rslora": options.rank_stabilized, "bias": "none", "init_lora_weights": True,
        "fan_in_fan_out": any(_is_transposed(matrix.form) for matrix in found),
        "target_modules": _short_names(found, family),
        "rank_pattern": {name: options.rank * count for name, count in stacked.items()},
        "alpha_pattern": {name: _int_if_whole(options.alpha * growth(count)) for name, count in stacked.items()},
    }  # fmt: skip


def _int_if_whole(number: float) -> float:
    return int(number) if number == int(number) else number


def _short_names(found: Sequence[Matrix], family: Family) -> list[str]:
    """Return the last part of their modules' names, or the last two where modules differ only before the last one."""
    # Of all modules of a layer, because peft adapts each module whose name ends in this way.
    every = {_last_two_parts(name) for row in family.modules(1, tied=False) for name in row.theirs}
    lasts = [end[-1] for end in every]
    ends = {_last_two_parts(name) for matrix in found for name in adapted_theirs(matrix)}
    return sorted(end[-1] if lasts.count(end[-1]) == 1 else ".".join(end) for end in ends)


def _last_two_parts(name: str) -> tuple[str, ...]:
    return tuple(name.split(".")[-2:])


def adapted_theirs(matrix: Matrix) -> list[str]:
    """Return their modules that have an adapter."""
    if len(matrix.theirs) == 1 or ALL in matrix.target.adapted:
        return list(matrix.theirs)
    names = [part.name for part in matrix.target.parts]
    return [theirs for theirs, part in zip(matrix.theirs, names, strict=True) if part in matrix.target.adapted]
