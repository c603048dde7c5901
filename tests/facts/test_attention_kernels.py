"""Which kernel computes attention, in words, that `auto` takes none that cannot, and what is stored of all pairs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from neoxargs.base.record import replace
from neoxargs.facts.attention import ScoreRule
from neoxargs.facts.attention_kernels import (
    Asked,
    Place,
    choices,
    choose,
    describe_kernels,
    obstacle,
    score_bytes,
    stored_pairs,
    unusable,
)
from tests.support.configure import configure
from tests.support.snapshots import pinned

BF16 = "precision: bfloat16\n"
NO_DROPOUT = "attention_dropout: 0\n"
CASES = {
    "causal": "",
    "bounded, windows in some layers": "sliding_window_width: 8\nwindow_attn_skip_freq: 2\nattn_logit_softcapping: 50",
    "documents": "reset_attention_mask: true",
    "documents, heads of 24": "reset_attention_mask: true\nhead_dim: 24",
    "documents, heads of 20": "reset_attention_mask: true\nhead_dim: 20",
    "ALiBi, dropout": "pos_emb: alibi\nattention_dropout: 0.1",
    "bounded, dropout": "attn_logit_softcapping: 50\nattention_dropout: 0.1",
    "rpe": "pos_emb: rpe",
    "softmax in fp32": "attention_softmax_in_fp32: true",
    "scaled": "apply_query_key_layer_scaling: true",
    "sparse": 'attention_config: [[["global", "bigbird"], 2]]',
    "recurrent": 'attention_config: [[["mamba"], 4]]',
    "unfused": "attention_backend: unfused",
    "sdpa, softmax in fp32": "attention_backend: sdpa\nattention_softmax_in_fp32: true",
    "flex, learned bias": "attention_backend: flex\npos_emb: rpe",
}


@pytest.mark.shows("attention_backend")
def test_choices() -> None:
    lines = []
    for name, text in CASES.items():
        config = configure(BF16 + NO_DROPOUT * ("dropout:" not in text) + text)
        lines += [name, *(f"    {place.device}: {describe_kernels(choices(config, place))}" for place in PLACES)]
    pinned("\n".join(lines))


PLACES = (Place(), Place("cpu", ampere=False, compiles=False))


def every_layer() -> list[Asked]:
    """Return what layers may ask, in all combinations."""
    rules = [ScoreRule(), ScoreRule(50.0), ScoreRule(causal_in_steps=True, masked_in_steps=True)]
    kinds, windows, documents, biases = ("global", "flash", "local"), (0, 8), (False, True), ("", "alibi", "rpe")
    rest = itertools.product((64, 24, 20, 512), (False, True), (0.0, 0.1), (True, False))
    return [
        Asked("auto", *first, *last)
        for last in rest
        for first in itertools.product(rules, kinds, windows, documents, biases)
    ]


EVERYWHERE = [
    *PLACES, Place(torch=(2, 12)), Place(torch=(2, 12), compiles=False), Place(ampere=False), Place(compiles=False)
]  # fmt: skip


@pytest.mark.parametrize("place", EVERYWHERE, ids=str)
def test_auto_takes_no_kernel_that_cannot(place: Place) -> None:
    """A kernel that stores nothing is passed over for a reason only; a `flash` layer is refused with bounded scores."""
    chosen = {choose(asked, place).kernel for asked in every_layer()}
    assert chosen >= {"sdpa", "unfused"}
    assert ("flex" in chosen) == (place.device == "cuda" and place.ampere and place.compiles)
    for asked in every_layer():
        choice = choose(asked, place)
        in_steps = asked.rule.asks_for_steps(asked.half, asked.masked)
        if not (asked.kind == "flash" and (asked.rule.softcap or in_steps)):
            assert not obstacle(choice.kernel, asked, place), (choice, place)
        if choice.kernel == "unfused":
            assert in_steps or asked.rule.softcap
        if choice.kernel == "unfused" or (choice.kernel == "sdpa" and asked.masked):
            assert in_steps or (obstacle("flex", asked, place) and obstacle("varlen", asked, place))


BOUNDED = BF16 + "attn_logit_softcapping: 50\nattention_dropout: 0.1\n"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", (2 * 4 * 32 * 32 * 11, 4)),
        ("model_parallel_size: 2\n", (2 * 2 * 32 * 32 * 11, 4)),
        ("pipe_parallel_size: 2\n", (2 * 4 * 32 * 32 * 11, 2)),
        ("checkpoint_activations: true\n", (2 * 4 * 32 * 32 * 11, 1)),
    ],
)
def test_what_is_stored(more: str, expected: tuple[int, int]) -> None:
    """Samples x heads x pairs of tokens x bytes of the softmax, the bound, probabilities in 16 bits, dropout's mask."""
    (stored,) = stored_pairs(configure(BOUNDED + more), Place())
    assert (stored.tensors, stored.layer, stored.layers) == ("scores", *expected)


def test_masks_that_are_stored() -> None:
    text = BF16 + "attention_dropout: 0.1\nsliding_window_width: 8\nwindow_attn_skip_freq: 2\n"
    (stored,) = stored_pairs(configure(text), Place())
    assert (stored.tensors, stored.layer, stored.layers) == ("masks", 32 * 32 * 2, 2)
    of_documents = text.replace("window_attn_skip_freq: 2", "reset_attention_mask: true")
    (documents,) = stored_pairs(configure(of_documents), Place())
    assert (documents.layer, documents.layers) == (2 * 32 * 32 * 2, 4)
    assert stored_pairs(configure(text.replace("0.1", "0")), Place()) == []


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("softcap", [None, 50.0])
def test_bytes_per_score_are_those_that_steps_store(half: bool, softcap: float | None) -> None:
    torch = pytest.importorskip("torch")
    from neoxargs.train.model.attention import SelfAttention
    from neoxargs.train.model.shared import Shared
    from neoxargs.train.parallel.layers import Weights
    from tests.support.small_gpt import small

    layer = SelfAttention(small(attn_logit_softcapping=softcap, attention_backend="unfused"), Weights(), Shared(), 0)
    query, key, value = torch.randn(3, 2, 4, 16, 8, dtype=torch.bfloat16 if half else torch.float32, requires_grad=True)
    scores, kept = 2 * 4 * 16 * 16, dict[int, int]()

    def keep(tensor: Any) -> Any:
        if tensor.numel() == scores:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        context = layer._attend(query, key, value, None, 0.0)
    assert context.requires_grad
    assert sum(kept.values()) == scores * score_bytes(replace(layer.asked, half=half, dropout=0.0))


def test_the_log_begins_with_the_kernels() -> None:
    torch = pytest.importorskip("torch")
    from neoxargs.train.run import attention_line

    (line,) = attention_line(configure(BF16 + "attention_backend: unfused"), torch.device("cpu"))
    assert line.startswith("attention: unfused in 4 layers")
    assert [*attention_line(configure(BF16 + CASES["recurrent"]), torch.device("cpu"))] == []
    divided = configure("{context_parallel_size: 4, num_attention_heads: 6, num_kv_heads: 2, head_dim: 16}", gpus=4)
    kernel, context = attention_line(divided, torch.device("cpu"))
    assert kernel.startswith("attention: unfused in ")  # those of chunks, not torch's kernels
    assert context.startswith("context parallel: hybrid over 2 x 2 ranks, heads x ring (")


@pytest.mark.parametrize(("heads", "also"), [(4, False), (6, True)])
def test_what_to_write_instead_of_a_ring_without_a_kernel_divides_the_heads(heads: int, also: bool) -> None:
    text = f"{{context_parallel_size: 4, context_parallel_style: ring, num_attention_heads: {heads}, head_dim: 8}}"
    (problem,) = unusable(configure(NO_DROPOUT, text, gpus=4), Place())
    assert ("context_parallel_size" in problem.hint) == also
