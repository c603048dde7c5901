"""Functions that store only their inputs for the backward pass, which recomputes all intermediate results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from neoxargs.train.autograd import apply

#: One tensor, or several.
Output = TypeVar("Output", Tensor, tuple[Tensor, Tensor])


def from_inputs(function: Callable[..., Output], *inputs: Tensor) -> Output:
    """Return `function(*inputs)`, whose backward pass calls it again instead of reading what autograd would store.

    For functions whose intermediate results take more memory than the inputs, such as those that convert to fp32. The
    function draws no random numbers and does not communicate.
    """
    if torch.compiler.is_compiling():  # the compiler chooses what a compiled layer stores
        return function(*inputs)
    output: Output = apply(_FromInputs, function, *inputs)
    return output


class _FromInputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Output], *inputs: Tensor) -> Output:
        ctx.function = function
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        # Leaves of a graph of their own: the gradient of this one function is computed, not that of what came before.
        inputs = [x.detach().requires_grad_(want) for x, want in zip(ctx.saved_tensors, wanted, strict=True)]
        with torch.enable_grad():
            outputs = ctx.function(*inputs)
        leaves = iter(torch.autograd.grad(outputs, [x for x in inputs if x.requires_grad], gradients))
        return None, *(next(leaves) if want else None for want in wanted)
