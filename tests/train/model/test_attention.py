"""What attention's parameters change: the model that is built, who sees whom, and in what precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.resolve import File, complete, draft
from neoxargs.train.model.attention import SelfAttention
from neoxargs.train.model.bias import alibi_slopes, bucket
from neoxargs.train.model.documents import document_starts, positions_in_document
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops import sdpa
from neoxargs.train.ops.sparsity import Pattern, layer_pattern, layout, window_mask
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import VOCABULARY, randomised, small

CPU = torch.device("cpu")
SEQ, EOD = 16, VOCABULARY.eod
SIZES = """
num-layers: 4
hidden-size: 32
num-attention-heads: 4
seq-length: 16
max-position-embeddings: 16
train-iters: 10
train_batch_size: 4
attention-dropout: 0
hidden-dropout: 0
"""


def written(text: str = "") -> Config:
    """What a file says, completed."""
    lines = [line for line in SIZES.splitlines() if line.partition(":")[0] not in text]
    return complete(draft([File("my.yml", "\n".join(lines) + "\n" + text)]), 1)


def model(text: str = "") -> GPT:
    torch.manual_seed(3)
    return randomised(GPT(written(text), VOCABULARY, Weights(), Shared())).eval()


def sample() -> Tensor:
    """(1, SEQ) without an end of document."""
    return torch.arange(SEQ)[None] + EOD + 1


def sees(gpt: GPT, tokens: Tensor, row: int) -> list[int]:
    """Whose embeddings the logits of place `row` depend on."""
    found: list[Tensor] = []
    handle = gpt.embedding.word_embeddings.register_forward_hook(
        lambda _, __, vectors: found.append(vectors.retain_grad()) or found.append(vectors)
    )
    gpt.output(gpt.final_norm(through(gpt, tokens)))[0][0, row].sum().backward()
    handle.remove()
    return found[1].grad[0].abs().sum(-1).nonzero()[:, 0].tolist()


def through(gpt: GPT, tokens: Tensor) -> Tensor:
    carried = gpt.positions(gpt.embedding(tokens))
    for layer in gpt.layers:
        carried = layer(carried)
    return carried if isinstance(carried, Tensor) else carried[0]


# -- positions as a bias -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (6, 16)])
def test_buckets_are_those_of_t5(buckets: int, distance: int, causal: bool) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    back = torch.arange(300)
    expected = t5.T5Attention._relative_position_bucket(
        -back, bidirectional=not causal, num_buckets=buckets, max_distance=distance
    )
    assert torch.equal(bucket(back, buckets, distance, causal), expected)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12])
def test_slopes_are_those_of_bloom(heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    bias = bloom.build_alibi_tensor(torch.ones(1, 3), heads, torch.float32)[:, 0]
    torch.testing.assert_close(bias[:, 1] - bias[:, 0], torch.tensor(alibi_slopes(heads)))


@pytest.mark.shows("rpe", "rpe-num-buckets", "rpe-max-distance", "rpe-causal")
def test_relative_positions() -> None:
    plain, relative = model(), model("rpe: true")
    assert plain.relative is None and plain.positions.table is not None
    assert relative.relative.table.shape == (32, 4) and relative.positions.table is None
    assert len({id(layer.attention.relative) for layer in relative.layers}) == 1
    assert model("rpe: true\nrpe-num-buckets: 8").relative.table.shape == (8, 4)

    def classes(more: str) -> int:
        bias = model(f"rpe: true\nrpe-num-buckets: 8\n{more}").relative(SEQ)[0]
        return len(bias[-1].unique())

    # 8 buckets for 16 distances: the widest begins at rpe-max-distance.
    assert classes("rpe-max-distance: 16\nrpe-causal: true") == 8
    assert classes("rpe-max-distance: 128\nrpe-causal: true") == 6
    assert classes("rpe-max-distance: 16\nrpe-causal: false") == 4
    # GPT-NeoX's default at the time of `rpe: true`, and what it has always done since.
    assert classes("rpe-max-distance: 16") == 4
    assert classes("rpe-max-distance: 16\ndialect: 2021-03-04") == 8


def test_the_bias_is_added_to_the_scores() -> None:
    """Everything else at zero, softmax sees the bias alone."""
    for text, expected in (("pos-emb: rpe", None), ("pos-emb: alibi", torch.tensor(alibi_slopes(4)))):
        gpt = model(text)
        bias = gpt.relative(SEQ) if expected is None else -expected[:, None, None] * torch.arange(SEQ).flip(0)
        query, value = torch.zeros(1, 4, SEQ, 8), torch.eye(SEQ).expand(1, 4, -1, -1)
        given = gpt.layers[0].attention._attend(query, query, value, None, 0.0)
        torch.testing.assert_close(given[0, :, -1], bias[:, -1].softmax(-1), rtol=1e-4, atol=1e-5)


# -- who sees whom -----------------------------------------------------------------------------------------------------

SPARSE = "sparse_attention: {mode: fixed, block: 2, num_local_blocks: 2}"


@pytest.mark.shows("sparsity", "sparse_attention")
def test_sparse_layers() -> None:
    kinds = {text: [layer.attention.masks.rule.pattern for layer in model(text).layers] for text in
             ("", "sparsity: all", "sparsity: interspersed")}  # fmt: skip
    assert [[p and p.kind for p in layers] for layers in kinds.values()] == [
        [None] * 4, ["sparse_variable"] * 4, [None, "sparse_variable"] * 2,
    ]  # fmt: skip
    one = "num-layers: 1\n"
    assert sees(model(one), sample(), 9) == list(range(10))
    # Windows of 4 tokens, and the last two of every window before.
    assert sees(model(f"{one}sparsity: all\n{SPARSE}"), sample(), 9) == [2, 3, 6, 7, 8, 9]
    assert sees(model(f"{one}sparsity: all\n{SPARSE.replace('2}', '4}')}"), sample(), 9) == [6, 7, 8, 9]
    assert sees(model(f"{one}sparsity: all\n{SPARSE.replace('fixed', 'bslongformer')}"), sample(), 9) == [
        0,
        1,
        6,
        7,
        8,
        9,
    ]


@pytest.mark.parametrize("attention", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize(
    ("kind", "theirs", "options"),
    [
        ("sparse_fixed", "Fixed", {"num_local_blocks": 4}),
        (
            "sparse_fixed",
            "Fixed",
            {"num_global_blocks": 2, "different_layout_per_head": True, "num_different_global_patterns": 2},
        ),
        ("sparse_variable", "Variable", {"local_window_blocks": (1, 3, 2), "global_block_indices": (2,)}),
        ("sparse_variable", "Variable", {"global_block_indices": (2, 5), "global_block_end_indices": (4, 20)}),
        ("bslongformer", "BSLongformer", {"global_block_indices": (0, 3), "num_sliding_window_blocks": 5}),
        ("bigbird", "BigBird", {"num_random_blocks": 0, "num_global_blocks": 2}),
        ("local", "LocalSlidingWindow", {"num_sliding_window_blocks": 5}),
    ],
)
def test_layouts_are_those_of_deepspeed(kind: str, theirs: str, options: dict[str, Any], attention: str) -> None:
    module = pytest.importorskip("deepspeed.ops.sparse_attention.sparsity_config")
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    expected = getattr(module, f"{theirs}SparsityConfig")(4, block=16, attention=attention, **listed).make_layout(160)
    ours = layout(Pattern(kind, 160, 4, attention=attention, **options))
    assert torch.equal(ours.tril(), expected.bool().tril())


def test_random_blocks_follow_seed_layer_and_head() -> None:
    config = small(
        attention_config=["bigbird"] * 2,
        sparsity_config={"block": 1, "different_layout_per_head": True, "num_sliding_window_blocks": 1},
    )
    drawn = [layout(layer_pattern(config, layer, seed)) for layer, seed in ((0, 1), (0, 1), (1, 1), (0, 2))]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[3])
    assert not torch.equal(drawn[0][0], drawn[0][1])


def test_a_window() -> None:
    assert sees(model("num-layers: 1\nsliding_window_width: 3"), sample(), 9) == [6, 7, 8, 9]


def test_a_window_as_wide_as_the_sequence_needs_no_mask() -> None:
    layer = attention(torch.float32, sliding_window_width=SEQ - 2)
    assert layer.masks.allowed(SEQ - 1, None, CPU) is None
    assert layer.masks.allowed(SEQ, None, CPU) is not None


@pytest.mark.parametrize("masked", [False, True])
def test_queries_that_share_keys_where_no_kernel_lets_them(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = torch.randn(2, 4, SEQ, 8), torch.randn(2, 2, SEQ, 8), torch.randn(2, 2, SEQ, 8)
    arguments = (query, key, value, window_mask(SEQ, 3, CPU) if masked else None, 0.0)
    shared = sdpa.attend(*arguments)
    monkeypatch.setattr(sdpa, "has_gqa_kernel", lambda *_: False)
    torch.testing.assert_close(sdpa.attend(*arguments), shared)


# -- documents ---------------------------------------------------------------------------------------------------------


def test_where_documents_begin() -> None:
    tokens = torch.tensor([[1, EOD, 2, 3, EOD, EOD, 4], [1, 2, 3, 4, 1, 2, 3]])
    assert document_starts(tokens, EOD).tolist() == [[0, 0, 2, 2, 2, 5, 6], [0] * 7]
    assert positions_in_document(document_starts(tokens, EOD))[0].tolist() == [0, 1, 0, 1, 2, 0, 0]


def test_they_are_megatrons() -> None:
    megatron = pytest.importorskip("megatron.core.datasets.gpt_dataset")
    tokens = torch.tensor([1, 2, EOD, 3, 4, 4, EOD, 1, 1])
    mask, _, places = megatron._get_ltor_masks_and_position_ids(tokens, EOD, True, True, False, True)
    begun = document_starts(tokens[None], EOD)
    assert positions_in_document(begun)[0].tolist() == places.tolist()
    ours = (begun[0][:, None] == begun[0]) & sdpa.causal_mask(9, CPU)
    assert torch.equal(~ours, mask[0])


@pytest.mark.shows("reset-attention-mask")
def test_attention_does_not_cross_documents() -> None:
    tokens = sample()
    tokens[0, 5] = EOD
    assert sees(model("reset-attention-mask: false"), tokens, 9) == list(range(10))
    assert sees(model("reset-attention-mask: true"), tokens, 9) == [6, 7, 8, 9]
    assert sees(model("reset-attention-mask: true"), tokens, 5) == list(range(6))


@pytest.mark.shows("reset-position-ids")
@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "rotary"])
def test_positions_restart(kind: str) -> None:
    """Cut off from the first document, the second one looks as it does alone."""
    tokens = sample()
    tokens[0, 5] = EOD
    apart = f"pos-emb: {kind}\nreset-attention-mask: true\nreset-position-ids: "
    restarted, counted = (model(apart + switch) for switch in ("true", "false"))
    alone = restarted(tokens[:, 6:])
    torch.testing.assert_close(restarted(tokens)[:, 6:], alone, rtol=1e-4, atol=1e-4)
    if kind != "rotary":  # its angles are relative: within a document it does not matter where they begin
        assert (counted(tokens)[:, 6:] - alone).abs().max() > 0.1
    else:
        across = f"pos-emb: {kind}\nreset-position-ids: "
        assert (model(across + "true")(tokens) - model(across + "false")(tokens)).abs().max() > 0.1


# -- precision ---------------------------------------------------------------------------------------------------------


def attention(dtype: torch.dtype, layer: int = 0, **changes: Any) -> SelfAttention:
    return SelfAttention(small(**changes), Weights(), Shared(), layer).to(dtype).eval()


def half(layer: int = 0, size: float = 1.0, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Tensor:
    """What a layer gathers in half precision from random queries, keys and values, of which `size` scales scores."""
    query, key, value = torch.randn(3, 2, 4, SEQ, 8, generator=torch.Generator().manual_seed(1))
    parts = ((query * size).to(dtype), (key * size).to(dtype), value.to(dtype))
    return attention(dtype, layer, **changes)._attend(*parts, None, 0.0)


def exact(size: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    query, key, value = torch.randn(3, 2, 4, SEQ, 8, generator=torch.Generator().manual_seed(1))
    rounded = ((query * size).to(dtype).double(), (key * size).to(dtype).double(), value.to(dtype).double())
    return torch.nn.functional.scaled_dot_product_attention(*rounded, is_causal=True)


@pytest.mark.shows("attention-softmax-in-fp32", "scaled-upper-triang-masked-softmax-fusion")
def test_unfused_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []
    softmax = Tensor.softmax
    monkeypatch.setattr(Tensor, "softmax", lambda x, *rest: seen.append(x.dtype) or softmax(x, *rest))
    fused = half()
    assert not seen
    steps = half(attention_softmax_in_fp32=True)
    assert seen == [torch.float32]
    assert not torch.equal(steps, fused)
    torch.testing.assert_close(steps.double(), exact(), rtol=0.05, atol=0.05)
    kept = half(attention_softmax_in_fp32=True, scaled_upper_triang_masked_softmax_fusion=True)
    assert torch.equal(kept, fused) and len(seen) == 1
    assert torch.equal(half(attention_softmax_in_fp32=True, scaled_masked_softmax_fusion=True), steps)
    # A `flash` layer stores no scores, whatever else is set.
    for wanted in ({"attention_softmax_in_fp32": True}, {"apply_query_key_layer_scaling": True}):
        assert torch.equal(half(attention_config=["flash"] * 2, **wanted), fused) and len(seen) == 2


@pytest.mark.shows("scaled-masked-softmax-fusion")
@pytest.mark.parametrize("change", [{"pos_emb": "alibi"}, {"sliding_window_width": 4, "num_kv_heads": 4}])
def test_each_softmax_fusion_switch_applies_to_its_mask(change: dict[str, Any]) -> None:
    fused, steps = half(**change), half(attention_softmax_in_fp32=True, **change)
    assert not torch.equal(steps, fused)
    torch.testing.assert_close(steps, fused, rtol=0.05, atol=0.05)
    wanted = {"attention_softmax_in_fp32": True, **change}
    assert torch.equal(half(scaled_masked_softmax_fusion=True, **wanted), fused)
    assert torch.equal(half(scaled_upper_triang_masked_softmax_fusion=True, **wanted), steps)


@pytest.mark.shows("apply-query-key-layer-scaling")
def test_layer_scaling_keeps_fp16_from_overflowing() -> None:
    assert written("apply-query-key-layer-scaling: true").attention.attention_softmax_in_fp32
    assert not written().attention.attention_softmax_in_fp32
    large = {"layer": 15, "size": 250.0, "dtype": torch.float16, "attention_softmax_in_fp32": True}
    assert not half(**large).isfinite().all()
    scaled = half(apply_query_key_layer_scaling=True, **large)
    torch.testing.assert_close(scaled.double(), exact(250.0, torch.float16), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("groups", [4, 2])
def test_steps_and_kernel_agree_where_queries_share_keys(groups: int) -> None:
    query, key, value = torch.randn(3, 2, 4, SEQ, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    key, value = key[:, :groups], value[:, :groups]
    steps = attention(torch.bfloat16).scores.in_steps(query, key, value, sdpa.causal_mask(SEQ, CPU), 0.0)
    torch.testing.assert_close(steps, sdpa.attend(query, key, value, None, 0.0), rtol=0.05, atol=0.05)


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.shows("attention-dropout")
@pytest.mark.parametrize("steps", [False, True])
def test_dropout_of_attention(steps: bool) -> None:
    config = {"attention_softmax_in_fp32": steps, "sliding_window_width": 4 if steps else None}
    for rate, same in ((0.0, True), (0.5, False)):
        layer = attention(torch.bfloat16, attention_dropout=rate, **config)
        hidden = torch.randn(1, SEQ, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
        assert torch.equal(layer.train()(hidden), layer(hidden)) == same
        assert torch.equal(layer.eval()(hidden), layer(hidden))


@pytest.mark.shows("num-attention-heads", "max-position-embeddings")
def test_heads_and_positions() -> None:
    seen = []
    for text in ("", "num-attention-heads: 2\nmax-position-embeddings: 24"):
        gpt = model(text)
        first = gpt.layers[0].attention
        rows = first.query_key_value.weight.shape[0]
        seen.append((first.local_groups, first.head_dim, rows, len(gpt.positions.table)))
    assert seen == [(4, 8, 96, 16), (2, 16, 96, 24)]


def test_a_sequence_may_be_shorter_than_the_table_of_positions() -> None:
    gpt = model("seq-length: 8\nmax-position-embeddings: 24")
    gpt.output(gpt.final_norm(through(gpt, sample()[:, :8])))[0].sum().backward()
    table = gpt.positions.table
    assert len(table) == 24
    assert table.grad.abs().sum(1).nonzero()[:, 0].tolist() == list(range(8))
