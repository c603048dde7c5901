"""Which kernel computes attention on a GPU, and that flex_attention computes what the masks say."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from neoxargs.facts import attention_kernels
from neoxargs.facts.attention_kernels import Place, asked_of_kernel, obstacle
from neoxargs.train.model import attention as model_attention
from neoxargs.train.model.attention import SelfAttention
from neoxargs.train.model.documents import document_starts
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops import flex, sdpa, sparsity
from neoxargs.train.ops.mask_rule import MaskRule
from neoxargs.train.ops.tables import Tables
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
    monkeypatch.setattr(sdpa, "should_compile", lambda device: compiles)


def choose_as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let layers choose kernels as on a GPU, with heads as narrow as those of the tests."""
    monkeypatch.setattr(model_attention, "place", lambda device: Place())
    monkeypatch.setattr(attention_kernels, "FLEX_WIDTHS", range(257))


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
    choose_as_on_gpu(monkeypatch)
    layer.kernels.clear()
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
        return attention(dtype, head_dim=64, **changes)._kernel(on_gpu(dtype), None, dropout) == "flex"

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


def has_flex(width: int, device: str = "cuda") -> bool:
    asked = asked_of_kernel(small(head_dim=width, pos_emb="alibi"), 0)
    return not obstacle("flex", asked, sdpa.place(torch.device(device)))


def test_which_gpus_have_flex_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, compiles in (((9, 0), True), ((8, 0), True), ((7, 5), True), ((9, 0), False)):
        use_gpu(monkeypatch, capability, compiles)
        widths = [width for width in (8, 16, 48, 64, 256, 512) if has_flex(width)]
        assert widths == ([16, 48, 64, 256] if compiles and capability >= (8, 0) else []), (capability, compiles)
    use_gpu(monkeypatch, (9, 0))
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.12.1"))
    assert [width for width in (48, 64, 80) if has_flex(width)] == [64]
    assert not has_flex(64, "cpu")


def test_layers_with_random_blocks_share_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch compiles a function for a few kinds of arguments only, and then computes it unfused."""
    from torch.nn.attention.flex_attention import flex_attention

    graphs: list[Any] = []
    kernel = torch.compile(flex_attention, backend=lambda graph, _: graphs.append(graph) or graph)
    monkeypatch.setattr(flex, "kernel", lambda compiled: kernel)
    choose_as_on_gpu(monkeypatch)
    many = BIGBIRD | {"num_layers": 12, "attention_config": ["bigbird"] * 12}
    config, shared, rules = small(**many), Shared(), set()
    for index in range(12):
        layer = SelfAttention(config, Weights(), shared, index)
        rules.add(layer.masks.rule)
        layer._attend(*torch.randn(3, 2, 4, SEQ, 8), None, 0.0)
    assert len(rules) == 12 and len(graphs) == 1


BLOCK_MASK = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices",
              "full_q_num_blocks", "full_q_indices")  # fmt: skip


def random_rule(draw: random.Random) -> tuple[MaskRule, int, torch.Tensor | None]:
    """Return a rule of windows and patterns, a length, and where documents of two samples begin."""
    seq, pattern = draw.randrange(1, 700), None
    if draw.random() < 0.4:
        block = draw.choice([2, 16, 48, 64, 256])
        seq = block * draw.randrange(1, max(2, 700 // block))
        kind = draw.choice(["bigbird", "local", "sparse_fixed"])
        pattern = sparsity.Pattern(kind, seq, 3, block, different_layout_per_head=draw.random() < 0.5)
    starts = None
    if draw.random() < 0.7:
        starts = torch.zeros(2, seq, dtype=torch.int64)
        for sample in starts:
            for begin in sorted([*draw.sample(range(seq), min(seq, draw.randrange(9))), min(seq - 1, 128)]):
                sample[begin:] = begin
    return MaskRule(pattern, draw.choice([0, 0, 1, 127, 128, 129, 300, 2000])), seq, starts


@pytest.mark.parametrize("seed", range(4))
def test_block_masks_are_those_of_torch(seed: int) -> None:
    """What every token attends to decides torch's own; ours is computed from the first tokens of rows and blocks."""
    from torch.nn.attention.flex_attention import create_block_mask

    draw = random.Random(seed)
    for _ in range(12):
        rule, seq, starts = random_rule(draw)
        ours = flex.block_mask(rule, seq, torch.device("cpu"), starts, Tables())
        heads = 3 if rule.pattern and rule.pattern.different_layout_per_head else None
        theirs = create_block_mask(ours.mask_mod, None if starts is None else 2, heads, seq, seq, device="cpu")
        assert (ours.BLOCK_SIZE, ours.seq_lengths) == (theirs.BLOCK_SIZE, theirs.seq_lengths)
        for name in BLOCK_MASK:
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=0, atol=0, msg=f"{rule} {name}")


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that an operator returned."""

    bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                self.bytes = max(self.bytes, each.nbytes)
        return result


@pytest.mark.parametrize("rule", [MaskRule(), MaskRule(window=300)], ids=["documents", "documents and window"])
def test_block_masks_need_no_tensor_of_all_pairs(rule: MaskRule) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    seq = 4096
    starts = document_starts(torch.arange(2 * seq).view(2, seq) % 1000, EOD)
    with Largest() as seen:
        mask = flex.block_mask(rule, seq, torch.device("cpu"), starts, Tables())
    assert 0 < seen.bytes <= starts.nbytes
    with Largest() as torchs:
        create_block_mask(mask.mask_mod, 2, None, seq, seq, device="cpu")
    assert torchs.bytes >= 2 * seq**2


@pytest.mark.slow
def test_every_rule_has_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rules than the 8 graphs of a function for which torch compiles it by default, in training and evaluation."""
    graphs: list[Any] = []

    def counted(function: Any, **options: Any) -> Any:
        return compiled(function, backend=lambda graph, _: graphs.append(graph) or graph, **options)

    compiled, made = torch.compile, flex.kernel.__wrapped__
    monkeypatch.setattr(torch, "compile", counted)
    query, key, value = torch.randn(3, 2, 4, SEQ, 8)
    starts = document_starts(torch.arange(2 * SEQ).view(2, SEQ) % 7, EOD)

    def compute_all() -> None:
        kernel = made(True)
        monkeypatch.setattr(flex, "kernel", lambda compiled: kernel)
        for softcap, window, begins in itertools.product((None, 50.0), (None, 3), (None, starts)):
            layer = attention(torch.float32, attn_logit_softcapping=softcap, sliding_window_width=window)
            for trains in (True, False):
                with torch.set_grad_enabled(trains):
                    layer.scores.in_flex(query, key, value, begins)

    compute_all()
    assert len(graphs) == 16
    torch.compiler.reset()
    monkeypatch.setattr(flex, "KERNELS", 2)
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        compute_all()
