"""Attention whose keys and values go around is that over the whole sequence, in values and gradients."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.train.model.documents import document_starts
from neoxargs.train.ops import ring
from neoxargs.train.ops.chunks import Chunks
from neoxargs.train.ops.mask_rule import MaskRule
from neoxargs.train.ops.tables import Tables
from neoxargs.train.parallel.positions import Positions
from neoxargs.train.process.mesh import Axis
from tests.support.ranks import all_ranks, run_ranks

BATCH, HEADS, KEYS, SEQ, WIDTH = 2, 4, 2, 32, 8
SLOPES = (0.5, 0.25, 0.125, 0.0625)
#: Rule, bound of scores, and whether samples have documents, which end within chunks and at their ends.
CASES: dict[str, tuple[MaskRule, float, bool]] = {
    "causal": (MaskRule(), 0.0, False),
    "window": (MaskRule(window=5), 0.0, False),
    "documents": (MaskRule(), 0.0, True),
    "softcap": (MaskRule(), 1.0, False),
    "alibi": (MaskRule(slopes=SLOPES), 0.0, False),
    "all": (MaskRule(window=9, slopes=SLOPES), 2.0, True),
}


def starts() -> Tensor:
    tokens = torch.ones(BATCH, SEQ, dtype=torch.long)
    tokens[0, [4, 15, 16]] = tokens[1, [7, 8, 23]] = 0
    return document_starts(tokens, 0)


def whole(query: Tensor, key: Tensor, value: Tensor, case: tuple[MaskRule, float, bool]) -> tuple[Tensor, Tensor]:
    """The definition, with the scores of all pairs of tokens."""
    rule, bound, documents = case
    rows, columns = torch.arange(SEQ)[:, None], torch.arange(SEQ)
    key, value = (x.repeat_interleave(HEADS // KEYS, 1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH)
    scores = bound * torch.tanh(scores / bound) if bound else scores
    if rule.slopes:
        scores = scores - torch.tensor(rule.slopes)[:, None, None] * (rows - columns)
    allowed = (rows >= columns) & ((rows - columns <= rule.window) | (rule.window == 0))
    if documents:
        allowed = allowed & (starts()[:, None, :, None] == starts()[:, None, None, :])
    scores = scores.masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def causal(axis: Axis) -> Chunks:
    return Chunks(MaskRule(), 0.0, SEQ // (2 * axis.size), None, Tables())


def differences(fault: str = "", dtype: torch.dtype = torch.float32) -> dict[str, list[float]]:
    """Return by how much the results and gradients of each case differ from the definition, on one rank."""
    axis = all_ranks()
    torch.manual_seed(0)
    inputs = [torch.randn(BATCH, heads, SEQ, WIDTH, dtype=dtype) for heads in (HEADS, KEYS, KEYS)]
    given = [torch.randn(BATCH, HEADS, SEQ, WIDTH, dtype=dtype), torch.randn(BATCH, HEADS, SEQ, dtype=dtype)]
    own = Positions(axis, ring=axis.size).numbers(SEQ // axis.size)[0]
    found = {}
    for name, case in CASES.items():
        rule, bound, documents = case
        size = SEQ // (2 * axis.size)
        chunks = Chunks(rule, bound, size, starts() if documents else None, Tables())
        full = [each.clone().requires_grad_() for each in inputs]
        part = [each[:, :, own].clone().requires_grad_() for each in inputs]
        expected = whole(*full, case)
        results = ring.ring_attention(*part, axis, PLANTED[fault](chunks), chunks.see)
        gradients = (
            torch.autograd.grad(expected, full, given),
            torch.autograd.grad(results, part, [each[:, :, own] for each in given]),
        )
        pairs = [*zip(expected, results, strict=True), *zip(*gradients, strict=True)]
        found[name] = [float((one[:, :, own] - other).abs().max()) for one, other in pairs]
    return found


def against_torch() -> list[float]:
    """Return by how much results and gradients differ from torch's context parallelism, with its kernel for CPUs.

    The public function has no handler for that kernel, so its ring is called: it cuts a causal sequence as ours does.
    """
    from torch.distributed.tensor.experimental._context_parallel import _attention as theirs

    axis, group = all_ranks(), dist.group.WORLD
    own = Positions(axis, ring=axis.size).numbers(SEQ // axis.size)[0]
    torch.manual_seed(0)
    query, key, value, given = (torch.randn(BATCH, HEADS, SEQ, WIDTH)[:, :, own] for _ in range(4))
    kernels = torch.ops.aten
    context, lse, *_ = theirs._templated_ring_attention(
        group, 2, kernels._scaled_dot_product_flash_attention_for_cpu, query, key, value, is_causal=True
    )  # fmt: skip
    gradients = theirs._templated_ring_attention_backward(
        group, 2, kernels._scaled_dot_product_flash_attention_for_cpu_backward.default, given, "grad_out",
        query, key, value, context, lse, is_causal=True, dropout_p=0.0,
    )  # fmt: skip
    chunks = causal(axis)
    part = [each.clone().requires_grad_() for each in (query, key, value)]
    results = ring.ring_attention(*part, axis, chunks.attend, chunks.see)  # type: ignore[arg-type]
    pairs = zip((context, lse, *gradients), (*results, *torch.autograd.grad(results[0], part, given)), strict=True)
    found = [float((one - other).abs().max()) for one, other in pairs]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_ring_is_that_of_torch(ranks: int) -> None:
    for found in run_ranks(against_torch, ranks):
        assert all(each < 3e-6 for each in found), found


def _without_distance(chunks: Chunks) -> ring.Block:
    """The fault: positions count from the beginning of each chunk."""
    return lambda query, key, value, rows, columns: chunks.attend(query, key, value, min(rows, columns + 1), columns)


def _without_lse(chunks: Chunks) -> ring.Block:
    """The fault: the outputs of pairs are merged as if all scores were equal."""

    def block(query: Tensor, key: Tensor, value: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        context, lse = chunks.attend(query, key, value, rows, columns)
        return context, lse * 0

    return block


PLANTED = {"": lambda chunks: chunks.attend, "distance": _without_distance, "log-sum-exp": _without_lse}


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_results_and_gradients_are_those_of_the_whole_sequence(ranks: int) -> None:
    for dtype, most in ((torch.float32, 3e-6), (torch.float64, 1e-13)):
        for found in run_ranks(differences, ranks, "", dtype):
            assert all(each < most for case in found.values() for each in case), found


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["distance", "log-sum-exp"])
def test_a_planted_fault_is_found(fault: str) -> None:
    [found, *_] = run_ranks(differences, 4, fault)
    assert max(map(max, found.values())) > 1e-2


def exchanged() -> tuple[int, int, int]:
    """Return the bytes that a rank sends forward and backward, and those of the largest tensor that it makes."""
    axis = all_ranks()
    chunks = causal(axis)
    own = SEQ // axis.size
    parts = [torch.randn(BATCH, heads, own, WIDTH, requires_grad=True) for heads in (HEADS, KEYS, KEYS)]
    sent: list[int] = []
    send = dist.batch_isend_irecv

    def counted(operations: Any) -> Any:
        sent.append(sum(each.tensor.nbytes for each in operations if each.op is dist.isend))
        return send(operations)

    scores = 0

    def block(query: Tensor, key: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        nonlocal scores
        scores = max(scores, query.shape[-2] * key.shape[-2])
        return chunks.attend(query, key, *rest)

    with patch.object(dist, "batch_isend_irecv", counted):
        context, _ = ring.ring_attention(*parts, axis, block, chunks.see)  # type: ignore[arg-type]
        forward = sum(sent)
        context.sum().backward()
    return forward, sum(sent) - forward, scores


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_each_rank_sends_keys_and_values_once_and_never_holds_all_scores(ranks: int) -> None:
    both = 2 * BATCH * KEYS * (SEQ // ranks) * WIDTH * 4
    for forward, backward, scores in run_ranks(exchanged, ranks):
        assert forward == (ranks - 1) * both
        # With their gradients, which also return to the rank that they belong to.
        assert backward == (ranks - 1) * both + ranks * both
        assert scores == (SEQ // (2 * ranks)) ** 2


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_a_causal_mask_leaves_all_ranks_the_same_work(ranks: int) -> None:
    """One pair more than a sequence has chunks, each token of which sees itself and those before in one half only."""
    chunks = Chunks(MaskRule(), 0.0, 8, None, Tables())
    for rank in range(ranks):
        axis = Axis(ranks, rank)
        pairs = [pair[:2] for source in range(ranks) for pair in ring._pairs(axis, source, chunks.see, 16)]
        assert len(pairs) == 2 * ranks + 1 == len({*pairs}) and sum(rows == columns for rows, columns in pairs) == 2


def kept() -> int:
    """Return the bytes that attention keeps for the backward pass on a rank."""
    axis = all_ranks()
    chunks = causal(axis)
    parts = [torch.randn(BATCH, heads, SEQ // axis.size, WIDTH, requires_grad=True) for heads in (HEADS, KEYS, KEYS)]
    stored: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: stored.append(x) or x, lambda x: x):  # type: ignore[func-returns-value]
        ring.ring_attention(*parts, axis, chunks.attend, chunks.see)  # type: ignore[arg-type]
    return sum(each.nbytes for each in stored)


@pytest.mark.slow
def test_four_ranks_keep_a_quarter_of_what_one_does() -> None:
    [alone], each = run_ranks(kept, 1), run_ranks(kept, 4)
    assert alone > 0 and all(kept <= 0.3 * alone for kept in each)


@pytest.mark.parametrize("window", [0, 3, 128, 200, 300])
@pytest.mark.parametrize("documents", [False, True])
def test_blocks_of_two_chunks_are_those_of_torch(window: int, documents: bool) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    size, device = 200, torch.device("cpu")
    tokens = torch.ones(2, 4 * size, dtype=torch.long)
    tokens[0, [127, 250, 399]] = tokens[1, [0, 600]] = 0
    chunks = Chunks(MaskRule(window=window), 0.0, size, document_starts(tokens, 0) if documents else None, Tables())
    pairs = [(rows, columns) for rows in range(4) for columns in range(rows + 1) if chunks.see(rows, columns)]
    assert len(pairs) == (10 if window == 0 else 4 + 3 if window <= size else 4 + 3 + 2)
    for rows, columns in pairs:
        attends = chunks._attends(rows, columns, device)
        if attends is None:
            continue
        ours = chunks._block_mask(attends, rows, columns, device)
        theirs = create_block_mask(attends, 2 if documents else 1, 1, size, size, device="cpu")
        dense = [each.to_dense().expand(2, 1, -1, -1) for each in (ours, theirs)]
        # Blocks that no token attends to may be computed, but none is left out.
        assert ((dense[0] - dense[1]) >= 0).all() and (documents or (dense[0] == dense[1]).all())


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", CASES)
def test_flex_attention_computes_the_same_of_two_chunks(name: str) -> None:
    rule, bound, documents = CASES[name]
    size = SEQ // 4
    chunks = Chunks(rule, bound, size, starts() if documents else None, Tables())
    query, key, value = (torch.randn(BATCH, heads, size, WIDTH) for heads in (HEADS, KEYS, KEYS))
    for rows, columns in ((0, 0), (1, 0), (3, 1), (3, 3)):
        if not chunks.see(rows, columns):
            continue
        expected = chunks.in_steps(query, key, value, rows, columns)
        found = chunks.in_flex(query, key, value, rows, columns)
        torch.testing.assert_close(found, expected)
