"""Rotation of queries and keys by the angles of their positions, between the fused projection and attention.

The forward pass writes one tensor, in which the queries of a token precede its keys and these its values: attention
reads them where they are, with grouped queries too, and the projection's output need not be stored. The backward pass
needs the angles only: it rotates the gradients back, right into the gradient of the projection's output. `rope_fusion`
compiles the rotation of one part, in either direction, to one kernel on GPUs; otherwise torch has five kernels for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from neoxargs.train.autograd import apply
from neoxargs.train.ops.fused import should_compile

#: Cosines and sines, each (S, width / 2) if they are the same for all samples, else (B, S, width / 2).
Angles = tuple[Tensor, Tensor]
#: Writes to the first tensor the second one, rotated by the angles, or back, times a factor. Both tensors are
#: (B, S, K, G, H).
Kernel = Callable[[Tensor, Tensor, Angles, bool, float], object]


def rotate_heads(
    x_BSKGH: Tensor, angles: Angles, counts: Sequence[int], scale: float = 1.0, fused: bool = False
) -> tuple[Tensor, ...]:
    """Split the heads of each group into queries, keys and values, and rotate the first two; or one of them alone.

    Returns (B, K x count, S, H) for each of `counts`, the heads of a group that belong to a part. The first dimensions
    of a head are rotated, two by each angle. scale: factor on the first part.
    """
    if torch.compiler.is_compiling():  # the compiler derives the backward pass, and fuses both with their surroundings
        parts = x_BSKGH.split(list(counts), dim=3)
        factors = _factors(scale, parts)
        pairs = zip(parts, factors, strict=True)
        turned = (part if factor is None else _turned(part, angles, False, factor) for part, factor in pairs)
        return tuple(part.flatten(2, 3).transpose(1, 2) for part in turned)
    kernel = _compiled() if fused and should_compile(x_BSKGH.device.type) else _turn_into
    if torch.is_grad_enabled():
        return apply(_Rotation, x_BSKGH, *angles, tuple(counts), scale, kernel)
    return _packed(x_BSKGH, angles, counts, scale, kernel)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_BSKGH: Tensor, cosine: Tensor, sine: Tensor, counts: tuple[int, ...], scale: float, kernel: Kernel
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cosine, sine)
        ctx.counts, ctx.scale, ctx.kernel = counts, scale, kernel
        return _packed(x_BSKGH, (cosine, sine), counts, scale, kernel)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        counts = ctx.counts
        by_token = [gradient.transpose(1, 2) for gradient in gradients]
        parts = [part.unflatten(2, (-1, count)) for part, count in zip(by_token, counts, strict=True)]
        batch, seq, groups, _, width = parts[0].shape
        gradient = parts[0].new_empty(batch, seq, groups, sum(counts), width)
        _write(gradient.split(counts, dim=3), parts, ctx.saved_tensors, True, ctx.scale, ctx.kernel)
        return gradient, None, None, None, None, None


def _packed(x_BSKGH: Tensor, angles: Angles, counts: Sequence[int], scale: float, kernel: Kernel) -> tuple[Tensor, ...]:
    """Return what `rotate_heads` returns, in one tensor, whose gradient is not known."""
    batch, seq, groups, heads, width = x_BSKGH.shape
    packed_BSNH = x_BSKGH.new_empty(batch, seq, groups * heads, width)
    parts = packed_BSNH.split([groups * count for count in counts], dim=2)
    places = [part.unflatten(2, (groups, count)) for part, count in zip(parts, counts, strict=True)]
    _write(places, x_BSKGH.split(list(counts), dim=3), angles, False, scale, kernel)
    return tuple(part.transpose(1, 2) for part in parts)


def _write(
    places: Sequence[Tensor], parts: Sequence[Tensor], angles: Angles, back: bool, scale: float, kernel: Kernel
) -> None:
    for place, part, factor in zip(places, parts, _factors(scale, parts), strict=True):
        if factor is None:
            place.copy_(part)
        else:
            kernel(place, part, angles, back, factor)


def _factors(scale: float, parts: Sequence[Tensor]) -> list[float | None]:
    """Return the factor on each part; None for values."""
    return [scale, 1.0, None][: len(parts)]


def _turn_into(place_BSKGH: Tensor, x_BSKGH: Tensor, angles: Angles, back: bool, factor: float) -> None:
    """Rotate with torch's kernels, of which the last of each half writes to `place`."""
    cosine, sine = _of_heads(angles, back, factor)
    half = cosine.shape[-1]
    first, second = x_BSKGH[..., :half], x_BSKGH[..., half : 2 * half]
    torch.addcmul(first * cosine, second, sine, value=-1, out=place_BSKGH[..., :half])
    torch.addcmul(second * cosine, first, sine, out=place_BSKGH[..., half : 2 * half])
    torch.mul(x_BSKGH[..., 2 * half :], factor, out=place_BSKGH[..., 2 * half :])


@cache
def _compiled() -> Kernel:
    return torch.compile(_turn_into_at_once)


def _turn_into_at_once(place_BSKGH: Tensor, x_BSKGH: Tensor, angles: Angles, back: bool, factor: float) -> None:
    place_BSKGH.copy_(_turned(x_BSKGH, angles, back, factor))


def _turned(x_BSKGH: Tensor, angles: Angles, back: bool, factor: float) -> Tensor:
    """Return what `_turn_into` writes, for the compiler."""
    cosine, sine = _of_heads(angles, back, factor)
    half = cosine.shape[-1]
    first, second, rest = x_BSKGH.split([half, half, x_BSKGH.shape[-1] - 2 * half], dim=-1)
    # The cosines and sines are fp32, and so are these sums, also when x has 16 bits.
    pairs = (torch.addcmul(first * cosine, second, sine, value=-1), torch.addcmul(second * cosine, first, sine))
    return torch.cat((*(part.to(x_BSKGH.dtype) for part in pairs), rest * factor), dim=-1)


def _of_heads(angles: Angles, back: bool, factor: float) -> Angles:
    """Return the angles, or the negative ones, times a factor, for all heads: (…, S, 1, 1, width / 2)."""
    cosine, sine = (each[..., None, None, :] for each in angles)
    return _times(cosine, factor), _times(sine, -factor if back else factor)


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor
