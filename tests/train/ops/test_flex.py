"""Which kernel computes attention on a GPU, and that flex_attention computes what the masks say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from neoxargs.train.model.attention import SelfAttention
from neoxargs.train.model.documents import document_starts
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops import flex, sdpa
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import VOCABULARY, small

SEQ, EOD = 16, VOCABULARY.eod
BIGBIRD = {
    "attention_config": ["bigbird"] * 2,
    "sparsity_config": {"block": 2, "different_layout_per_head": True, "num_random_blocks": 1},
}


def attention(dtype: torch.dtype, **changes: Any) -> SelfAttention:
    return SelfAttention(small(**changes), Weights(), Shared(), 0).to(dtype).eval()


def on_gpu(dtype: torch.dtype = torch.bfloat16, width: int = 64) -> Any:
    """What the choice of a kernel reads of a query on a GPU."""
    return SimpleNamespace(device=torch.device("cuda", 0), is_cuda=True, dtype=dtype, shape=(2, 4, SEQ, width))


def use_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], compiles: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(flex, "should_compile", lambda device: compiles)


def test_where_queries_may_share_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    half, full = torch.bfloat16, torch.float32
    use_gpu(monkeypatch, (8, 0))
    assert sdpa.has_gqa_kernel(on_gpu(half), masked=False)
    refused = [(half, True), (full, False), (full, True)]
    assert not any(sdpa.has_gqa_kernel(on_gpu(dtype), masked) for dtype, masked in refused)
    assert not sdpa.has_gqa_kernel(on_gpu(half, width=320), masked=False)
    assert sdpa.has_gqa_kernel(torch.empty(2, 4, SEQ, 8), masked=True)
    for older in ((7, 0), (7, 5)):  # V100 and T4 have no flash kernel, and torch would store the scores
        use_gpu(monkeypatch, older)
        assert not sdpa.has_gqa_kernel(on_gpu(torch.float16), masked=False)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{"pos_emb": "alibi"}, {"sliding_window_width": 3, "num_kv_heads": 2},
     {"pos_emb": "alibi", "sliding_window_width": 5}, BIGBIRD,
     {**BIGBIRD, "pos_emb": "alibi", "sliding_window_width": 5}, {"num_kv_heads": 2},
     {"attn_logit_softcapping": 0.5, "num_kv_heads": 2},
     {"attn_logit_softcapping": 0.5, "pos_emb": "alibi", "sliding_window_width": 5}],
    ids=lambda changes: " ".join(changes),
)  # fmt: skip
def test_flex_attention_agrees_with_masks(
    changes: dict[str, Any], documents: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = attention(torch.float32, **changes)
    keys = changes.get("num_kv_heads", 4)
    query, key, value = (torch.randn(2, heads, SEQ, 8) for heads in (4, keys, keys))
    tokens = torch.arange(2 * SEQ).view(2, SEQ) % 7  # EOD is among them, elsewhere in each sample
    starts = document_starts(tokens, EOD) if documents else None
    masked = layer._attend(query, key, value, starts, 0.0)
    monkeypatch.setattr(flex, "is_supported", lambda *_: True)
    calls, compute = [], layer.scores.in_flex
    monkeypatch.setattr(layer.scores, "in_flex", lambda *given: calls.append(given) or compute(*given))
    torch.testing.assert_close(layer._attend(query, key, value, starts, 0.0), masked)
    causal_only = not documents and list(changes) == ["num_kv_heads"]
    assert len(calls) == (not causal_only)
    causal = attention(torch.float32, num_kv_heads=keys)._attend(query, key, value, None, 0.0)
    assert ((masked - causal).abs().max() > 0.1) == (not causal_only)


def test_which_layers_use_flex_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpu(monkeypatch, (9, 0))

    def fits(dropout: float = 0.0, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> bool:
        return attention(dtype, **changes)._fits_flex(on_gpu(dtype), None, dropout)

    assert fits(pos_emb="alibi") and fits(sliding_window_width=3) and fits(**BIGBIRD)
    assert fits(attn_logit_softcapping=50.0)
    assert fits(pos_emb="alibi", dtype=torch.float32)
    assert not fits() and not fits(sliding_window_width=SEQ - 1)  # the causal kernels are faster
    assert not fits(dropout=0.1, pos_emb="alibi")
    assert not fits(seq_length=2 * SEQ, pos_emb="alibi")
    # Step by step, if asked for; a block-sparse layer is asked to skip blocks.
    assert not fits(pos_emb="alibi", attention_softmax_in_fp32=True)
    assert fits(pos_emb="alibi", attention_softmax_in_fp32=True, attention_config=["flash"] * 2)
    assert fits(pos_emb="alibi", attention_softmax_in_fp32=True, dtype=torch.float32)
    assert fits(**BIGBIRD, attention_softmax_in_fp32=True)


def test_which_gpus_have_flex_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, compiles in (((9, 0), True), ((8, 0), True), ((7, 5), True), ((9, 0), False)):
        use_gpu(monkeypatch, capability, compiles)
        widths = [width for width in (8, 16, 48, 64, 256, 512) if flex.is_supported(on_gpu(width=width), 0.0)]
        assert widths == ([16, 48, 64, 256] if compiles and capability >= (8, 0) else []), (capability, compiles)
    use_gpu(monkeypatch, (9, 0))
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.12.1"))
    assert [width for width in (48, 64, 80) if flex.is_supported(on_gpu(width=width), 0.0)] == [64]
    assert not flex.is_supported(torch.empty(2, 4, SEQ, 64), 0.0)


def test_layers_with_random_blocks_share_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch compiles a function for a few kinds of arguments only, and then computes it unfused."""
    from torch.nn.attention.flex_attention import flex_attention

    graphs: list[Any] = []
    kernel = torch.compile(flex_attention, backend=lambda graph, _: graphs.append(graph) or graph)
    monkeypatch.setattr(flex, "kernel", lambda compiled: kernel)
    monkeypatch.setattr(flex, "is_supported", lambda *_: True)
    many = BIGBIRD | {"num_layers": 12, "attention_config": ["bigbird"] * 12}
    config, shared, rules = small(**many), Shared(), set()
    for index in range(12):
        layer = SelfAttention(config, Weights(), shared, index)
        rules.add(layer.masks.rule)
        layer._attend(*torch.randn(3, 2, 4, SEQ, 8), None, 0.0)
    assert len(rules) == 12 and len(graphs) == 1
