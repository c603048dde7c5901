"""Autograd functions with the type of what they return, which torch's `Function.apply` lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

Output = TypeVar("Output", covariant=True)


class Differentiable(Protocol[Output]):
    """A subclass of `torch.autograd.Function`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any, **named: Any) -> Output: ...

    @classmethod
    def apply(cls, *inputs: Any, **named: Any) -> Any: ...


def apply(function: Differentiable[Output], *inputs: Any) -> Output:
    """Return what `forward` of the function returns, with its backward pass."""
    output: Output = function.apply(*inputs)
    return output


def linear(x: Tensor, function: Callable[[Tensor], Tensor], transposed: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `function(x)`, a linear function such as a communication; the gradient of x is `transposed(gradient)`."""
    return apply(_Linear, x, function, transposed)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor], transposed: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.transposed = transposed
        return function(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed(gradient), None, None
