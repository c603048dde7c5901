"""Recurrent layers of a sequence that ranks divide are those of one process, in values and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.plan.memory import activations
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.train.model.blocks import mamba, rwkv
from neoxargs.train.model.blocks.table import block_class
from neoxargs.train.model.documents import document_starts, pack, unpack
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops import scan, wkv
from neoxargs.train.parallel import carried
from neoxargs.train.parallel.layers import Ranks, Weights
from neoxargs.train.parallel.positions import Positions
from neoxargs.train.process.mesh import Axis, build_mesh
from tests.support.planted import FAULTS
from tests.support.ranks import run_ranks
from tests.support.small_gpt import randomised, small

BATCH, SEQ, HIDDEN = 2, 32, 32
SIZES = {"mamba_inner_size": 48, "dim_att": 32, "head_size": 8, "ffn_dim": 96, "norm": "rmsnorm", "pos_emb": "none"}
#: Kind of layer, and whether samples have documents, which end within chunks and at their ends.
CASES = {f"{kind}{', documents' * documents}": (kind, documents)
         for kind in ("mamba", "rwkv") for documents in (False, True)}  # fmt: skip
STYLES = ("all_to_all", "ring", "hybrid")


def ranks_of(style: str) -> Ranks:
    """All ranks, which divide sequences; with `hybrid`, two exchange heads in attention."""
    sizes = {"context_parallel_size": dist.get_world_size(), "context_parallel_style": style, "num_kv_heads": 2}
    return Ranks.of(build_mesh(small(**sizes)))


def starts() -> Tensor:
    tokens = torch.ones(BATCH, SEQ, dtype=torch.long)
    tokens[0, [4, 15, 16]] = tokens[1, [7, 8, 23]] = 0
    return document_starts(tokens, 0)


def block(kind: str, ranks: Ranks, seq: int = SEQ, **changes: Any) -> torch.nn.Module:
    config = small(**SIZES, seq_length=seq, attention_config=[kind, kind], **changes)
    torch.manual_seed(0)
    return randomised(block_class(config, 0)(config, Weights(ranks=ranks), Shared(), 0))


def distances(style: str) -> dict[str, float]:
    """Return the largest difference from one process of each case: of output, gradient of input, of weights."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    x, gradient = torch.randn(2, BATCH, SEQ, HIDDEN)
    divided = ranks_of(style)
    own = divided.positions
    found = {}
    for name, (kind, documents) in CASES.items():
        results = []
        for ranks in (Ranks(), divided):
            layer, part = block(kind, ranks, reset_attention_mask=documents), ranks.positions
            given = part.of(x).clone().requires_grad_()
            output, _ = unpack(layer(pack(given, starts() if documents else None)))
            output.backward(part.of(gradient))
            of_weights = [weight.grad for weight in layer.parameters() if weight.grad is not None]
            results.append((output.detach(), given.grad, of_weights))
        (alone, of_alone, weights), (here, of_here, others) = results
        pairs = [(here, own.of(alone)), (of_here, own.of(of_alone))]
        for one, other in zip(others, weights, strict=True):
            dist.all_reduce(one)
            pairs.append((one, other))
        found[name] = max(float((one - other).norm() / other.norm()) for one, other in pairs)
    return found


def everywhere() -> dict[str, dict[str, float]]:
    return {style: distances(style) for style in STYLES}


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_results_and_gradients_are_those_of_one_process(ranks: int) -> None:
    for found in run_ranks(everywhere, ranks):
        assert all(each < 1e-12 for style in found.values() for each in style.values()), found


@pytest.mark.parametrize(("ring", "ranks"), [(1, 3), (3, 3), (2, 4), (2, 6)])
def test_rows_are_in_the_order_of_positions(ring: int, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where three ranks divide two chunks of a ring, of which one has parts of both."""
    whole = torch.arange(1, 49).view(2, 24)
    every = [Positions(Axis(ranks, rank), ring=ring) for rank in range(ranks)]
    parts = [carried.rows(own.of(whole), own) for own in every]
    gathered = torch.stack([part[:, -1:].unflatten(0, (2, -1)) for part in parts])
    monkeypatch.setattr(carried, "gather", lambda shard, group: gathered)
    for own, part in zip(every, parts, strict=True):
        assert (part.diff() == 1).all()
        first = part[:, :1]
        assert torch.equal(carried.inputs_before(part, 1, own), torch.where(first % 24 == 1, 0, first - 1))


#: Fault -> the cases in which it is seen.
SEEN = {
    "no_state_of_the_chunk_before": {*CASES},
    "no_inputs_of_the_chunk_before": {*CASES},
    "no_gradient_of_the_state_before": {*CASES},
    "states_of_other_documents": {"mamba, documents", "rwkv, documents"},
    "documents_that_go_on_across_borders": {"mamba, documents", "rwkv, documents"},
    "states_in_the_order_of_ranks": {*CASES},
}


@contextmanager
def planted(fault: str) -> Iterator[None]:
    changed = carried, scan, wkv, mamba, rwkv
    before = [dict(vars(module)) for module in changed]
    FAULTS[fault]()
    yield
    for module, names in zip(changed, before, strict=True):
        vars(module).update(names)


def with_faults() -> dict[str, dict[str, float]]:
    found = {}
    for fault in SEEN:
        with planted(fault):
            found[fault] = distances("ring")
    return found


@pytest.mark.slow
def test_planted_faults_are_seen() -> None:
    [found, _] = run_ranks(with_faults, 2)
    assert {fault: {case for case, each in cases.items() if each > 1e-4} for fault, cases in found.items()} == SEEN


def measured(kind: str, seq: int, ranks: Ranks) -> tuple[list[int], int]:
    """Return the bytes of each gather of a layer's forward and backward pass, and those that it keeps between them."""
    layer, sizes, kept = block(kind, ranks, seq), list[int](), {}
    weights = {weight.data_ptr() for weight in layer.parameters()}
    gather = carried.gather

    def counted(shard: Tensor, group: Any) -> Tensor:
        sizes.append(dist.get_world_size(group) * shard.nbytes)
        return gather(shard, group)

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return x

    carried.gather = counted
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        output = layer(ranks.positions.of(torch.randn(BATCH, seq, HIDDEN)).clone().requires_grad_())
    stored = sum(storage.nbytes() for storage in kept.values())
    output.sum().backward()
    carried.gather = gather
    return sizes, stored


def costs() -> dict[tuple[str, str], list[tuple[list[int], int]]]:
    """Of two lengths, and of the longer one on a rank alone."""
    found = {}
    for kind in ("mamba", "rwkv"):
        for style in STYLES:
            ranks = ranks_of(style)
            found[kind, style] = [
                measured(kind, 512, ranks),
                measured(kind, 1024, ranks),
                measured(kind, 1024, Ranks()),
            ]
    return found


@pytest.mark.slow
def test_messages_do_not_grow_with_the_sequence_and_a_rank_keeps_its_part() -> None:
    for rank in run_ranks(costs, 4):
        for (kind, style), [shorter, (sizes, kept), (_, alone)] in rank.items():
            assert sizes == shorter[0] and sizes
            assert kept < 0.3 * alone
            config = small(
                **SIZES, seq_length=1024, attention_config=[kind, kind], precision="fp32", context_parallel_size=4,
                context_parallel_style=style, num_kv_heads=2, train_micro_batch_size_per_gpu=BATCH,
            )  # fmt: skip
            [planned] = activations.blocks(ActivationSizes(config, "cpu"), [0])
            assert planned == pytest.approx(kept, rel=0.05), (kind, style)
