"""Autograd functions with the type of what they return, which torch's `Function.apply` lacks."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

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
