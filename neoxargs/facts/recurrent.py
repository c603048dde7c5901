"""How weights and operations of a kind of recurrent layer are declared. RECURRENCES in model.py lists the kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from neoxargs.config.config import Config
from neoxargs.facts.data import masks_documents


class Tensor(NamedTuple):
    """A weight tensor of a recurrent layer, or of attention."""

    name: str
    """Name within the layer, such as `mixer.in_proj.weight`."""
    numel: int
    sharded: bool = True
    """Whether it is sharded across the tensor parallel ranks."""
    multiplies: bool = False
    """Whether it is the matrix of a matrix product."""


class Recurrence(NamedTuple):
    """What the counts need to know of a kind of recurrent layer."""

    tensors: Callable[[Config], list[Tensor]]
    """The layer's weights, except norms of the model's kind."""
    norms: Callable[[Config], int]
    """Number of norms of the model's kind, over the residual stream."""
    operations: Callable[[Config], int]
    """Floating point operations of the forward pass per token, besides products with weight matrices."""

    def matrices(self, config: Config) -> int:
        """Return the number of elements of the matrices of matrix products."""
        return sum(tensor.numel for tensor in self.tensors(config) if tensor.multiplies)

    def others(self, config: Config) -> int:
        """Return the number of elements of the other weights, except norms of the model's kind."""
        return sum(tensor.numel for tensor in self.tensors(config) if not tensor.multiplies)


def excludes_kernels(config: Config, parameter: str) -> str:
    """Return why the kernel of another package that a parameter asks for cannot compute a layer; "" if it can."""
    if config.training.deterministic:
        return "it adds gradients in any order, which deterministic excludes"
    if masks_documents(config.data):
        return "it cannot begin a document anew"
    if config.zero_optimization.stage == 3:
        return "ZeRO stage 3 divides the weights that it reads"
    if config.parallel.context_parallel_size > 1 and parameter == "mamba_selective_scan_fusion":
        return "it computes no gradient of the last state, which goes to another rank"
    return ""
