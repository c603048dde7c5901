"""A kernel of attention that is named and cannot do what a layer asks is an error; what `auto` stores is a warning."""

from __future__ import annotations

import pytest

from neoxargs.checks import attention
from neoxargs.facts.attention_kernels import Place, choices
from neoxargs.hosts.assumed import assumed_nodes
from neoxargs.hosts.hosts import Resources
from neoxargs.runs.run_spec import RunSpec
from tests.support.configure import configure
from tests.support.snapshots import pinned

BF16 = "precision: bfloat16\n"
ON_CPU = Resources({"localhost": [0]}, "cpu")


def run_of(text: str, resources: Resources | None = None, **assumed: str) -> RunSpec:
    config = configure(text.rstrip("\n") + "\n" + "attention_dropout: 0\n" * ("attention_dropout" not in text))
    return RunSpec(config, resources or assumed_nodes(8, config.runner), assumed={"torch": "2.13.0", **assumed})


REFUSED = [
    "attention_backend: flex\nattention_dropout: 0.1",
    "attention_backend: flex\npos_emb: rpe",
    "attention_backend: flex\nhead_dim: 24\nsliding_window_width: 8",
    "attention_backend: varlen\npos_emb: alibi",
    "attention_backend: varlen\nattn_logit_softcapping: 50",
    "attention_backend: varlen\nprecision: fp32",
    'attention_backend: varlen\nattention_config: [[["global", "local"], 2]]',
    "attention_backend: varlen\nattention_dropout: 0.1",
    "attention_backend: sdpa\nattn_logit_softcapping: 50",
    'attention_backend: unfused\nattention_config: [[["flash"], 4]]',
]


def test_kernels_that_cannot() -> None:
    found = []
    for text in REFUSED:
        (problem,) = attention.unusable_kernels(run_of(text if "precision" in text else BF16 + text))
        assert (problem.id, problem.severity) == ("attention-backend-unusable", "error")
        found.append(f"{problem.what}\n    {problem.hint}")
    pinned("\n".join(found))


@pytest.mark.parametrize(
    "text",
    [
        "attention_backend: flex\nsliding_window_width: 8\nattn_logit_softcapping: 50\n",
        "attention_backend: flex\n",
        "attention_backend: varlen\nreset_attention_mask: true\nsliding_window_width: 8\nnum_kv_heads: 2",
        "attention_backend: sdpa\npos_emb: rpe\nattention_dropout: 0.1",
        "attention_backend: unfused\nattn_logit_softcapping: 50\nattention_dropout: 0.1",
    ],
)
def test_kernels_that_can(text: str) -> None:
    assert [*attention.unusable_kernels(run_of(BF16 + text))] == []


def test_an_older_torch() -> None:
    text = BF16 + "attention_backend: {0}\nreset_attention_mask: true\nhead_dim: 48\n"
    for name in ("varlen", "flex"):
        assert [*attention.unusable_kernels(run_of(text.format(name)))] == []
        assert len([*attention.unusable_kernels(run_of(text.format(name), torch="2.12.1"))]) == 1


def test_kernels_that_need_a_gpu() -> None:
    for name, count in (("flex", 1), ("varlen", 1), ("sdpa", 0), ("unfused", 0), ("auto", 0)):
        text = BF16 + f"attention_backend: {name}\nreset_attention_mask: true\n"
        assert len([*attention.unusable_here(run_of(text, ON_CPU))]) == count
        assert [*attention.unusable_here(run_of(text))] == []
    # One error is enough.
    assert [*attention.unusable_here(run_of(BF16 + "attention_backend: flex\nattention_dropout: 0.1", ON_CPU))] == []


@pytest.mark.parametrize("style", ["", "context_parallel_style: ring\n"])
def test_a_ring_needs_a_kernel_on_gpus_only(style: str) -> None:
    text = f"context_parallel_size: 4\nnum_attention_heads: 6\nhead_dim: 8\n{style}"
    (problem,) = attention.unusable_kernels(run_of(text))
    assert problem.where and problem.where.line == (4 if style else 1)
    for found in (attention.unusable_kernels(run_of(text, ON_CPU)), attention.unusable_here(run_of(text, ON_CPU))):
        assert [*found] == []


def test_a_ring_in_separate_steps_is_for_cpus() -> None:
    ring = "context_parallel_size: 4\ncontext_parallel_style: ring\nattention_backend: {}\n"
    for name, here, gpus in (("unfused", 0, 1), ("flex", 1, 0), ("auto", 0, 0)):
        run, remote = (run_of(BF16 + ring.format(name), resources) for resources in (ON_CPU, None))
        assert len([*attention.unusable_kernels(run), *attention.unusable_here(run)]) == here, name
        found = [*attention.unusable_kernels(remote), *attention.unusable_here(remote)]
        assert [problem.about for problem in found] == [("attention_backend",)] * gpus, name
    (chosen, *_) = choices(run_of(ring.format("unfused")).config, Place("cpu"))
    assert chosen.kernel == "unfused" and not chosen.refused


LONG = BF16 + "seq_length: 4096\nmax_position_embeddings: 4096\n"
STORED = {
    "bounded, dropout": "attn_logit_softcapping: 50\nattention_dropout: 0.1\n",
    "softmax in fp32": "attention_softmax_in_fp32: true\n",
    "scaled": "apply_query_key_layer_scaling: true\n",
    "rpe": "pos_emb: rpe\ntrain_micro_batch_size_per_gpu: 8\nseq_length: 16384\n",
    "documents, dropout": "reset_attention_mask: true\nattention_dropout: 0.1\nseq_length: 16384\n",
}


def long(text: str) -> str:
    return (LONG if "seq_length" not in text else BF16 + "max_position_embeddings: 16384\n") + text


def test_what_is_stored_on_gpus() -> None:
    found = []
    for name, text in STORED.items():
        (problem,) = attention.stored_scores(run_of(long(text)))
        assert (problem.id, problem.severity) == ("attention-stores-pairs", "warning")
        found.append(f"{name}: {problem.what}\n    {problem.hint}")
        assert [*attention.stored_scores(run_of(long(text), ON_CPU))] == []
        kernel = problem.hint.partition("attention_backend: ")[2].split()[0]
        assert [*attention.stored_scores(run_of(long(text) + f"attention_backend: {kernel}\n"))] == []
        assert [*attention.stored_scores(run_of(BF16 + text.replace("seq_length: 16384\n", "")))] == [], "short"
    pinned("\n".join(found))


@pytest.mark.parametrize(
    "text", ["", "reset_attention_mask: true\n", "attn_logit_softcapping: 50\n", "pos_emb: alibi\nseq_length: 16384\n"]
)
def test_nothing_is_said_where_nothing_is_stored(text: str) -> None:
    assert [*attention.stored_scores(run_of(long(text)))] == []
