"""Rotation of queries and keys: the expression that it stands for, and what it stores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neoxargs.train.model.attention import SelfAttention
from neoxargs.train.model.rotary import Rotation
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops import rotary
from neoxargs.train.ops.rotary import Angles, rotate_heads
from neoxargs.train.ops.tables import Tables
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import small

BATCH, SEQ = 2, 7
#: Groups, heads of a group in each part, head dimension, rotated dimensions.
SHAPES = {
    "all dimensions": (3, (1, 1, 1), 8, 8),
    "a quarter": (2, (1, 1, 1), 16, 4),
    "grouped queries": (2, (4, 1, 1), 8, 6),
    "queries alone": (2, (3,), 8, 8),
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def sample(shape: tuple[int, tuple[int, ...], int, int], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """Return heads and the gradients of their parts."""
    torch.manual_seed(0)
    groups, counts, dim, _ = shape
    x = torch.randn(BATCH, SEQ, groups, sum(counts), dim, dtype=dtype, requires_grad=True)
    return x, [torch.randn(BATCH, groups * count, SEQ, dim, dtype=dtype) for count in counts]


def angles_of(width: int, samples: int | None = None) -> Angles:
    """Return cosines and sines with a multiplier, as some `rope_scaling` has, the same for all samples or not."""
    angle = torch.randn(*([samples] if samples else []), SEQ, width // 2) * 3
    return angle.cos() * 1.25, angle.sin() * 1.25


SCALE = 0.7  # of queries


def expected(x: Tensor, angles: Angles, counts: tuple[int, ...]) -> list[Tensor]:
    """Rotate each pair of dimensions as a complex number, in fp64."""
    half = angles[0].shape[-1]
    factor = torch.complex(*(part.double() for part in angles))[..., None, None, :]
    parts = []
    for number, part in enumerate(x.double().split(counts, dim=3)):
        if number < 2:
            pairs = torch.complex(part[..., :half].contiguous(), part[..., half : 2 * half].contiguous()) * factor
            part = torch.cat((pairs.real, pairs.imag, part[..., 2 * half :]), dim=-1)
        parts.append(part.flatten(2, 3).transpose(1, 2) * (SCALE if number == 0 else 1))
    return parts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("samples", [None, BATCH], ids=["one position per token", "positions of each sample"])
@each_shape
def test_parts_and_gradient_are_those_of_the_expression(shape: Any, samples: int | None, dtype: torch.dtype) -> None:
    (x, gradients), counts, angles = sample(shape, dtype), shape[1], angles_of(shape[3], samples)
    found, wanted = rotate_heads(x, angles, counts, SCALE), expected(x, angles, counts)
    with torch.no_grad():
        assert all(map(torch.equal, rotate_heads(x, angles, counts, SCALE), found))
    found_gradient, wanted_gradient = (torch.autograd.grad(parts, x, gradients) for parts in (found, wanted))
    for ours, theirs in zip((*found, *found_gradient), (*wanted, *wanted_gradient), strict=True):
        assert ours.dtype == dtype
        tolerance = {"rtol": 0, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2**-8, "atol": 1e-5}
        torch.testing.assert_close(ours.double(), theirs.double(), **tolerance)


@each_shape
def test_only_the_angles_are_stored(shape: Any) -> None:
    (x, _), angles, kept = sample(shape, torch.bfloat16), angles_of(shape[3]), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        parts = rotate_heads(x, angles, shape[1])
    assert {tensor.data_ptr() for tensor in kept} == {tensor.data_ptr() for tensor in angles}
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1  # one tensor for all parts
    assert all(part.transpose(1, 2).stride()[2:] == (shape[2], 1) for part in parts)  # heads of a token in a row


def test_the_gradient_is_one_tensor() -> None:
    shape = SHAPES["grouped queries"]
    x, gradients = sample(shape, torch.float32)
    with torch.profiler.profile() as profile:
        torch.autograd.grad(rotate_heads(x, angles_of(shape[3]), shape[1]), x, gradients)
    assert not {"aten::cat", "aten::clone", "aten::zeros"} & {event.name for event in profile.events()}


def test_angles_stay_exact_in_16_bits() -> None:
    x = torch.ones(1, 1000, 1, 1, 4, dtype=torch.bfloat16)
    cosine, sine = Rotation(4, 10000).angles(1000, 1000, x.device, Tables())
    [ours], [wide] = (rotate_heads(each, (cosine, sine), (1,)) for each in (x, x.float()))
    torch.testing.assert_close(ours, wide.bfloat16(), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("name", ["a quarter", "grouped queries"])
def test_the_compiled_kernel_writes_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPES[name]
    (x, gradients), angles = sample(shape, torch.bfloat16), angles_of(shape[3])
    plain = rotate_heads(x, angles, shape[1], SCALE)
    [of_plain] = torch.autograd.grad(plain, x, gradients)
    kernel = torch.compile(rotary._turn_into_at_once, fullgraph=True)
    monkeypatch.setattr(rotary, "should_compile", lambda device: True)
    monkeypatch.setattr(rotary, "_compiled", lambda: kernel)
    fused = rotate_heads(x, angles, shape[1], SCALE, fused=True)
    [of_fused] = torch.autograd.grad(fused, x, gradients)
    for ours, theirs in zip((*fused, of_fused), (*plain, of_plain), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2**-8, atol=1e-6)  # the compiler may keep more digits of a sum


def test_the_kernel_is_for_training_with_rope_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts have many lengths, for each of which there would be another kernel."""
    calls: list[bool] = []

    def kernel(place: Tensor, x: Tensor, angles: Angles, back: bool, factor: float) -> None:
        calls.append(back)
        rotary._turn_into(place, x, angles, back, factor)

    monkeypatch.setattr(rotary, "should_compile", lambda device: True)
    monkeypatch.setattr(rotary, "_compiled", lambda: kernel)
    for fusion, norms, training in (
        (True, False, True),
        (True, True, True),
        (False, False, True),
        (True, False, False),
    ):
        changes = {"pos_emb": "rotary", "rope_fusion": fusion, "use_qk_layernorm": norms}
        attention = SelfAttention(small(**changes), Weights(), Shared()).train(training)
        calls.clear()
        attention(torch.randn(2, 16, 32)).sum().backward()
        assert sorted(calls) == ([False, False, True, True] if fusion and training else [])
