"""Tensors without weights that all layers of a model share: masks, position biases, rotary cosines and sines.

Each model has its own tables, which are freed together with it; a cache of the process would outlive engines. They are
not buffers of modules, because DeepSpeed casts buffers to 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def _is_exporting() -> bool:
    """Whether a model is exported: tensors then have no values, and must not be kept for later.

    Not torch.compiler.is_exporting, which before torch 2.13 is also true in compiled layers (pytorch/pytorch#176347):
    each would compute its own rotation angles.
    """
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()


class _Derived(NamedTuple):
    """A value, and the tensor that it was computed from."""

    source: Tensor
    # torch's count of changes in place: the same memory may hold the next batch.
    version: int
    value: Any

    def is_of(self, source: Tensor) -> bool:
        """Whether `source` is our source with unchanged contents, or another tensor object on the same memory.

        No other tensor gets that memory while ours is held.
        """
        ours = self.source
        same_memory = source is ours or (ours.data_ptr() == source.data_ptr() and ours.shape == source.shape)
        return same_memory and source._version == self.version


class Tables:
    """The tensors that one model has built so far."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Any] = {}
        self._derived: dict[Hashable, _Derived] = {}

    def get(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return what `build` returned for this key; call it only once."""
        if _is_exporting():
            return build()
        if key not in self._kept:
            self._kept[key] = build()
        kept: T = self._kept[key]
        return kept

    def square(self, key: Hashable, seq: int, build: Callable[[int], Tensor]) -> Tensor:
        """Return `build(seq)`, (…, S, C), of which the upper left part is what a shorter sequence has.

        Only the largest is kept, so that text which grows token by token does not leave one behind for every length.
        """
        if _is_exporting():
            return build(seq)
        kept = self._kept.get(key)
        if kept is None or kept.shape[-1] < seq:
            kept = self._kept[key] = build(seq)
        return kept if kept.shape[-1] == seq else kept[..., :seq, :seq]

    def rows(
        self, key: Hashable, seq: int, build: Callable[[int], tuple[Tensor, ...]], version: int = 0
    ) -> tuple[Tensor, ...]:
        """Return tensors with at least `seq` rows, of which the first are what a shorter sequence has.

        Of the versions, only the last one is kept.
        """
        if _is_exporting():
            return build(seq)
        kept_version, kept = self._kept.get(key, (version, None))
        if kept is None or kept_version != version or len(kept[0]) < seq:
            kept = build(seq)
            self._kept[key] = version, kept
        rows: tuple[Tensor, ...] = kept
        return rows

    def derived(self, key: Hashable, source: Tensor, build: Callable[[], T]) -> T:
        """Return what `build` computes from `source`: once for all layers that see the same source one after another.

        Recomputed layers get the same memory as another tensor object.
        """
        if _is_exporting():
            return build()
        kept = self._derived.get(key)
        if kept is None or not kept.is_of(source):
            kept = self._derived[key] = _Derived(source, source._version, build())
        value: T = kept.value
        return value
