"""Selective recomputation: cheap intermediate results are computed again in the backward pass instead of stored.

A matrix product stores its input for the backward pass. Where that is the output of a norm or an activation function,
the input of this function is stored as well, and suffices to compute it again. The same holds for normalised queries
and keys, which attention stores. The outputs of matrix products (or what is rotated of them) and of attention, and
dropout masks, are kept: no random number is drawn again, nothing is communicated again, and gradients are equal bit for
bit.

torch's `create_selective_checkpoint_contexts` is not used: it calls Python for every operation of both passes, refuses
kept products that are summed in place over tensor parallel ranks, and fails if a recomputed layer builds a mask
that the forward pass had from another layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

#: Computes a tensor from others, the same each time.
Function = Callable[..., Tensor]


class Recipe(NamedTuple):
    """A function and its inputs, which compute a tensor again, and the shape in which it was saved."""

    function: Function
    inputs: tuple[Tensor, ...]
    versions: tuple[int, ...]
    shape: torch.Size

    def compute(self) -> Tensor:
        """Return the tensor, computed again. AssertionError if an input was modified in place since."""
        assert self.versions == _versions(self.inputs), "an input of a recomputed tensor was modified in place"
        with torch.no_grad():
            return self.function(*self.inputs).view(self.shape)


class _Output(NamedTuple):
    """A tensor that need not be stored. It is held until the layer ends, so that no other tensor gets its memory."""

    tensor: Tensor
    recipe: Recipe

    def is_seen_by(self, saved: Tensor) -> bool:
        """Whether `saved` is this tensor, or a view of all its elements in the same order."""
        ours = self.tensor
        if saved.data_ptr() != ours.data_ptr() or saved.dtype != ours.dtype:
            return False
        same = saved.shape == ours.shape and saved.stride() == ours.stride()
        return same or (saved.numel() == ours.numel() and saved.is_contiguous() and ours.is_contiguous())


class Selective:
    """Calls functions whose outputs are recomputed in the backward pass, if enabled and inside of `layer()`.

    The layers of a model share one; one layer runs at a time.
    """

    def __init__(self, enabled: bool = False) -> None:
        self.enabled = enabled
        self._outputs: list[_Output] | None = None

    def __call__(self, function: Function, *inputs: Tensor) -> Tensor:
        """Return `function(*inputs)`, which is recomputed from `inputs` where a backward pass needs it."""
        output = function(*inputs)
        if self._outputs is not None:
            # Detached, so that a recipe does not hold the graph of this pass.
            given = tuple(x.detach() for x in inputs)
            self._outputs.append(_Output(output.detach(), Recipe(function, given, _versions(given), output.shape)))
        return output

    def layer(self) -> AbstractContextManager[None]:
        """Return the context of one layer's forward pass."""
        return self._recording() if self.enabled and torch.is_grad_enabled() else nullcontext()

    @contextmanager
    def _recording(self) -> Iterator[None]:
        self._outputs = []
        try:
            with saved_tensors_hooks(self._pack, _unpack):
                yield
        finally:
            self._outputs = None

    def _pack(self, saved: Tensor) -> Any:
        for output in self._outputs or ():
            if output.is_seen_by(saved):
                # With the shape in which it was saved: a matrix product saves its input with batch and sequence
                # flattened.
                return output.recipe._replace(shape=saved.shape)
        return saved


def _unpack(packed: Tensor | Recipe) -> Tensor:
    return packed.compute() if isinstance(packed, Recipe) else packed


def _versions(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in tensors)
