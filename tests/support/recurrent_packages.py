"""What mamba-ssm, causal-conv1d and flash-linear-attention compute, token by token, with their functions' signatures.

Types and layouts that their kernels refuse are refused here too.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: Function -> how often it was called.
calls = dict.fromkeys(("selective_scan_fn", "causal_conv1d_fn", "chunk_rwkv6"), 0)


def selective_scan_fn(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, *, delta_bias: Tensor, delta_softplus: bool
) -> Tensor:
    """u, delta: (batch, channels, length). A: (channels, state). B, C: (batch, state, length). D and bias: (channels).

    Channel c: h = exp(delta A) h + delta B u, then y = C h + D u.
    """
    assert delta_softplus
    assert u.dtype == delta.dtype == B.dtype == C.dtype
    assert A.dtype == D.dtype == delta_bias.dtype == torch.float32
    assert u.shape == delta.shape and B.shape == C.shape == (len(u), A.shape[1], u.shape[2])
    calls["selective_scan_fn"] += 1
    x, steps = u.float(), F.softplus(delta.float() + delta_bias[:, None])
    state, outputs = x.new_zeros(len(u), *A.shape), []
    for t in range(u.shape[2]):
        step, into = steps[:, :, t, None], B[:, None, :, t].float()
        state = torch.exp(step * A) * state + step * into * x[:, :, t, None]
        outputs.append((state * C[:, None, :, t].float()).sum(-1) + D * x[:, :, t])
    return torch.stack(outputs, -1).to(u.dtype)


def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    """x: (batch, channels, length). weight: (channels, taps), the newest token last."""
    assert x.stride(2) == 1 or (x.stride(1) == 1 and x.stride(2) % 8 == x.stride(0) % 8 == x.shape[1] % 8 == 0)
    assert activation is None and weight.dim() == 2 and 2 <= weight.shape[1] <= 4
    assert bias is None or bias.dtype == weight.dtype
    calls["causal_conv1d_fn"] += 1
    taps, length = weight.shape[1], x.shape[2]
    padded = F.pad(x.float(), (taps - 1, 0))
    y = sum(padded[..., tap : tap + length] * weight[:, tap, None].float() for tap in range(taps))
    return (y if bias is None else y + bias.float()[:, None]).to(x.dtype)  # type: ignore[union-attr]


def chunk_rwkv6(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """r, k, v, w: (batch, length, heads, width); w is the logarithm of the decays. u: (heads, width)."""
    scale = r.shape[-1] ** -0.5 if scale is None else scale
    assert r.dtype == k.dtype == v.dtype and bool((w <= 0).all()) and initial_state is None
    calls["chunk_rwkv6"] += 1
    state, outputs = r.new_zeros(len(r), *u.shape, v.shape[-1], dtype=torch.float32), []
    for t in range(r.shape[1]):
        new = k[:, t, ..., None].float() * v[:, t, :, None].float()
        read = state + u.float()[..., None] * new
        outputs.append((scale * r[:, t, ..., None].float() * read).sum(-2))
        state = w[:, t, ..., None].float().exp() * state + new
    return torch.stack(outputs, 1).to(v.dtype), state if output_final_state else None


def install() -> None:
    """Make the functions importable where the packages have them, with versions."""
    places: dict[str, Any] = {
        "mamba_ssm.ops.selective_scan_interface": selective_scan_fn, "causal_conv1d": causal_conv1d_fn,
        "fla.ops.rwkv6": chunk_rwkv6,
    }  # fmt: skip
    for path in ("mamba_ssm", "mamba_ssm.ops", "fla", "fla.ops", *places):
        sys.modules[path] = ModuleType(path)
        sys.modules[path].__version__ = "1.0"  # type: ignore[attr-defined]
    for path, function in places.items():
        setattr(sys.modules[path], function.__name__, function)
