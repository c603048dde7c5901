"""Norms that compute in fp32 store their input alone, and have the gradients of autograd's own formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from neoxargs.registry.model import Norm
from neoxargs.train.model.norm import AllHeadsNorm, norm
from neoxargs.train.ops.from_inputs import from_inputs
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import small


def options(**changes: object) -> Norm:
    return small(norm="rmsnorm", **changes).norm


def one_plus(x: Tensor, weight: Tensor) -> Tensor:
    return _rms(x) * (1 + weight)


def outside_root(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-8) * weight


def all_heads(x: Tensor, weight: Tensor) -> Tensor:
    return (_rms(x.flatten(-3)) * weight).view(x.shape)


def _rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-8)


CASES: list[tuple[Callable[[], nn.Module], Callable[[Tensor, Tensor], Tensor]]] = [
    (lambda: norm(4, options(apply_layernorm_1p=True)), one_plus),
    (lambda: norm(4, options(rms_norm_epsilon_under_root=False)), outside_root),
    (lambda: AllHeadsNorm((2, 3, 4), options(), Weights()), all_heads),
]


@pytest.mark.parametrize(("make", "formula"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_the_formula(
    make: Callable[[], nn.Module], formula: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype
) -> None:
    layer = make().to(dtype)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, 2, 3, 4, generator=generator).to(dtype).requires_grad_()
    pull = torch.randn(x.shape, generator=generator).to(dtype)
    assert isinstance(layer.weight, nn.Parameter)
    precise, weight = (each.detach().float().requires_grad_() for each in (x, layer.weight))
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each) or each, lambda each: each):
        output = layer(x)
    output.backward(pull)
    formula(precise, weight).backward(pull.float())
    assert output.dtype == dtype
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(output.float(), formula(precise, weight), **close)
    torch.testing.assert_close(x.grad.float(), precise.grad, **close)  # type: ignore[union-attr]
    torch.testing.assert_close(layer.weight.grad.float(), weight.grad, rtol=2e-2, atol=5e-2)  # type: ignore[union-attr]
    assert sum(each.numel() for each in saved if each.data_ptr() != x.data_ptr()) <= x.numel() // 4


def test_what_needs_no_gradient_gets_none() -> None:
    x, weight = torch.randn(3), torch.randn(3, requires_grad=True)
    from_inputs(torch.mul, x, weight).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(weight.grad, x)
