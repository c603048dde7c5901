"""varlen_attn is given what masks say, forward and backward. It runs on GPUs only: a reference is in its place."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from neoxargs.facts.attention_kernels import Place
from neoxargs.train.model import attention as model_attention
from neoxargs.train.model.attention import SelfAttention
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops import varlen
from neoxargs.train.ops.tables import Tables
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import small

SEQ, CPU = 16, torch.device("cpu")


def reference(
    query: Tensor, key: Tensor, value: Tensor, bounds_q: Tensor, bounds_k: Tensor, most_q: int, most_k: int,
    *, window_size: tuple[int, int], enable_gqa: bool,
) -> Tensor:  # fmt: skip
    """Attend within each sequence, as torch documents `varlen_attn`: (W, 0) is a window of W tokens, (-1, 0) causal."""
    assert bounds_q is bounds_k and bounds_q.dtype == torch.int32 and window_size[1] == 0
    assert enable_gqa == (key.shape[1] < query.shape[1])
    assert int(bounds_q[0]) == 0 and int(bounds_q[-1]) == len(query)
    found = []
    for begin, end in itertools.pairwise(bounds_q.tolist()):
        length = end - begin
        assert 0 < length <= min(most_q, most_k)
        rows = torch.arange(length)
        distance = rows[:, None] - rows
        allowed = (distance >= 0) & ((distance <= window_size[0]) if window_size[0] >= 0 else True)
        one, other, values = (x[begin:end].transpose(0, 1) for x in (query, key, value))
        repeats = len(one) // len(other)
        other, values = other.repeat_interleave(repeats, 0), values.repeat_interleave(repeats, 0)
        scores = (one @ other.transpose(1, 2) / query.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
        found.append((scores.softmax(-1) @ values).transpose(0, 1))
    return torch.cat(found)


def attention(**changes: Any) -> SelfAttention:
    return SelfAttention(small(**changes), Weights(), Shared(), 0)


def results(layer: SelfAttention, inputs: list[Tensor], starts: Tensor | None) -> tuple[Tensor, ...]:
    context = layer._attend(*inputs, starts, 0.0)
    return context, *torch.autograd.grad(
        (context * torch.linspace(-1, 1, context.numel()).view_as(context)).sum(), inputs
    )


def random_starts(draw: random.Random) -> Tensor:
    starts = torch.zeros(3, SEQ, dtype=torch.int64)
    for sample in starts:
        for begin in sorted(draw.sample(range(1, SEQ), draw.randrange(6))):
            sample[begin:] = begin
    return starts


def compute_on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Choose as on a GPU, with the reference in the place of the kernel; return its calls."""
    calls: list[Any] = []
    monkeypatch.setattr(model_attention, "place", lambda device: Place())
    monkeypatch.setattr(model_attention, "is_half", lambda x: True)
    counted = lambda *given, **more: calls.append(given) or reference(*given, **more)  # noqa: E731
    monkeypatch.setattr(varlen, "kernel", lambda: counted)
    return calls


@pytest.mark.parametrize("window", [0, 3, 100])
@pytest.mark.parametrize("keys", [1, 2, 4])
@pytest.mark.parametrize("documents", [False, True])
def test_it_computes_what_masks_do(window: int, keys: int, documents: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"num_kv_heads": keys, "sliding_window_width": window or None, "reset_attention_mask": documents}
    masked, layer = attention(**changes), attention(**changes, attention_backend="varlen")
    draw = random.Random(10 * window + keys)
    inputs = [torch.randn(3, heads, SEQ, 8, requires_grad=True) for heads in (4, keys, keys)]
    cases = [random_starts(draw) if documents else None for _ in range(5)]
    expected = [results(masked, inputs, starts) for starts in cases]
    calls = compute_on_gpu(monkeypatch)
    for starts, wanted in zip(cases, expected, strict=True):
        torch.testing.assert_close(results(layer, inputs, starts), wanted)
    assert len(calls) == len(cases)


def test_wrong_bounds_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as one document begins a token later, the results differ."""
    inputs = [torch.randn(3, 4, SEQ, 8, requires_grad=True) for _ in range(3)]
    starts = random_starts(random.Random(1))
    expected = results(attention(reset_attention_mask=True), inputs, starts)
    compute_on_gpu(monkeypatch)
    right = varlen._bounds(starts)
    within = [index for index, bound in enumerate(right.tolist()) if bound % SEQ]
    assert within
    for moved in within:
        shifted = right.clone()
        shifted[moved] += 1 if right[moved] + 1 < right[moved + 1] else -1
        monkeypatch.setattr(varlen, "_bounds", lambda _, shifted=shifted: shifted)
        context = attention(reset_attention_mask=True, attention_backend="varlen")._attend(*inputs, starts, 0.0)
        assert not torch.allclose(context, expected[0], atol=1e-3)


def test_bounds() -> None:
    starts = torch.tensor([[0, 0, 2, 3], [0, 0, 0, 3]])
    assert varlen.document_bounds(2, 4, CPU, starts, Tables()).tolist() == [0, 2, 3, 4, 7, 8]
    assert varlen.document_bounds(2, 4, CPU, None, Tables()).tolist() == [0, 4, 8]


def test_evaluation_and_prompts_take_another_kernel_where_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = compute_on_gpu(monkeypatch)
    layer = attention(reset_attention_mask=True, attention_backend="varlen").eval()
    query, key, value = torch.randn(3, 3, 4, SEQ // 2, 8)
    starts = random_starts(random.Random(2))[:, : SEQ // 2].contiguous()
    with torch.no_grad():
        expected = attention(reset_attention_mask=True)._attend(query, key, value, starts, 0.0)
        torch.testing.assert_close(layer._attend(query, key, value, starts, 0.0), expected)
    assert not calls
    with pytest.raises(RuntimeError, match="varlen"):
        layer.train()._attend(query, key, value, starts, 0.0)
