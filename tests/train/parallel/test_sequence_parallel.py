"""Tensor parallel ranks that share out the sequence between parallel regions: the same gradients from less memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops.fused import DropoutAdd
from neoxargs.train.parallel.layers import Ranks, Weights
from neoxargs.train.process.mesh import Axis
from tests.support.layouts import BF16, DOCUMENTS, SHARDS, zero
from tests.support.ranks import all_ranks, run_ranks
from tests.support.selection import mostly_slow
from tests.support.small_gpt import VOCABULARY, batch, load_shards, randomised, small
from tests.support.trials import Trial, started

ByName = dict[str, Tensor]
SIDE_BY_SIDE = {"gpt_j_residual": True, "pos_emb": "rotary"}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "llama": {
        "pos_emb": "rotary", "norm": "rmsnorm", "activation": "swiglu", "intermediate_size": 96, "num_kv_heads": 2,
        "use_bias_in_attn_linear": False, "use_bias_in_mlp": False, "no_weight_tying": True,
    },
    "side by side": SIDE_BY_SIDE,
    "side by side, tied": SIDE_BY_SIDE | {"gpt_j_tied": True},
    "norms of queries and keys": {"use_qk_layernorm": True, "num_kv_heads": 2},
    "documents": DOCUMENTS,
    "waves": {"pos_emb": "sinusoidal", "norm": "scalenorm"},
    "z loss": {"z_loss": 0.1},
    "norms after, over all heads": {
        "norm_placement": "after", "norm": "rmsnorm", "use_qk_layernorm": True, "qk_layernorm_scope": "all_heads",
    },
    "norms before and after, bounds": {
        "norm_placement": "both", "apply_layernorm_1p": True, "attn_logit_softcapping": 1.0, "head_dim": 12,
        "final_logit_softcapping": 2.0, "embedding_multiplier": 3.0,
    },
}  # fmt: skip


def alone(name: str) -> tuple[float, ByName, ByName]:
    """Loss, weights and gradients of one process."""
    torch.manual_seed(3)
    model = randomised(GPT(small(**KINDS[name]), VOCABULARY, Weights(), Shared()))
    loss = model(*batch(2))
    loss.backward()
    weights = named_weights(model).items()
    return loss.item(), {key: p.detach() for key, p in weights}, {key: p.grad for key, p in weights}


def both_ways() -> None:
    axis = all_ranks()
    for name, shards in itertools.product(KINDS, (False, True)):
        loss, weights, gradients = alone(name)
        model = GPT(small(**KINDS[name]), VOCABULARY, Weights(ranks=Ranks(axis, sequence_parallel=shards)), Shared())
        load_shards(model, weights)
        found = model(*batch(2))
        found.backward()
        torch.testing.assert_close(found.item(), loss, rtol=1e-5, atol=1e-5)
        mine = {key: p.grad for key, p in named_weights(model).items()}
        load_shards(model, gradients)
        for key, expected in named_weights(model).items():
            torch.testing.assert_close(
                mine[key], expected, rtol=1e-4, atol=1e-5, msg=lambda m, n=f"{name}, {key}": f"{n}: {m}"
            )


def test_the_same_gradients() -> None:
    run_ranks(both_ways, 2)


def kept(shards: bool, changes: dict[str, Any]) -> tuple[int, int]:
    """Bytes that four layers keep for the backward pass, weights aside; and how often they all-reduce."""
    model = GPT(
        small(**changes, num_layers=4),
        VOCABULARY,
        Weights(ranks=Ranks(all_ranks(), sequence_parallel=shards)),
        Shared(),
    )
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    found: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return x

    hidden, calls, really = torch.randn(2, 16 // (2 if shards else 1), 32, requires_grad=True), 0, dist.all_reduce

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return really(*arguments, **options)

    dist.all_reduce = counted
    with saved_tensors_hooks(keep, lambda x: x):
        for block in model.layers:
            hidden = block(hidden)
    dist.all_reduce = really
    return sum(found.values()), calls


def measured() -> dict[str, tuple[int, int]]:
    return {
        "whole": kept(False, {}),
        "shards": kept(True, {}),
        "side by side": kept(False, SIDE_BY_SIDE),
        "side by side, shards": kept(True, SIDE_BY_SIDE),
    }


def test_less_is_kept_and_what_lies_side_by_side_is_summed_once() -> None:
    for found in run_ranks(measured, 2):
        for name in ("", "side by side, "):
            # Norms, residuals and what enters matrices: a third of what is kept, of which shards are the half.
            assert found[f"{name}shards"][0] < 0.87 * found[f"{name}whole" if not name else "side by side"][0]
        assert [calls for _, calls in found.values()] == [8, 0, 4, 0]


def dropped(summed_together: bool) -> tuple[Tensor, float]:
    """A mask of this rank's shard, and the loss of a model that drops out."""
    axis, changes = all_ranks(), {"hidden_dropout": 0.3, "gpt_j_residual": summed_together}
    torch.manual_seed(5)
    mask = DropoutAdd(0.5, False, axis)(torch.ones(4, 8), torch.zeros(4, 8)) if axis.size > 1 else torch.ones(1)
    torch.manual_seed(5)
    return mask, GPT(small(**changes), VOCABULARY, Weights(ranks=Ranks(axis)), Shared()).train()(*batch(2)).item()


@pytest.mark.parametrize("summed_together", [False, True])
def test_masks(summed_together: bool) -> None:
    """Shards are dropped differently; what all ranks have is dropped alike, before it is summed and after."""
    (first, loss), (second, same) = run_ranks(dropped, 2, summed_together)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    changes = {"hidden_dropout": 0.3, "gpt_j_residual": summed_together}
    one = GPT(small(**changes), VOCABULARY, Weights(ranks=Ranks(Axis())), Shared()).train()(*batch(2))
    assert loss == same == pytest.approx(one.item(), abs=1e-5)


def both(changes: dict[str, Any], deepspeed: dict[str, Any]) -> tuple[Trial, Trial]:
    """The trial with whole sequences on each tensor parallel rank, and with shards."""
    stage = deepspeed.get("zero_optimization", {}).get("stage", 0)
    base = {"zero_optimization.stage": stage, **changes}
    return Trial(base | SHARDS | {"sequence_parallel": False}, deepspeed), Trial(base | SHARDS, deepspeed)


#: World size -> trials of every kind of optimizer in which DeepSpeed keeps gradients.
ENGINES = {
    2: {"plain": both({}, {}), "pipeline": both({"pipe_parallel_size": 1}, {}), "bf16": both({}, BF16),
        "bf16, pipeline": both({"pipe_parallel_size": 1}, BF16), "ZeRO-3": both({}, zero(3))},
    4: {"ZeRO-1": both({}, zero(1)), "ZeRO-1, pipeline": both({"pipe_parallel_size": 1}, zero(1)),
        "ZeRO-2": both({}, zero(2)), "bf16, dp2": both({}, BF16)},
}  # fmt: skip


def trained(pairs: dict[str, tuple[Trial, Trial]]) -> dict[str, tuple[list[float], list[float], int]]:
    """Return losses and norms without shards and with them, one after the other, and the all-reduces of a last step."""
    found = {}
    for name, pair in pairs.items():
        curves = []
        for _, built in started(dict(enumerate(pair))):
            results = [built.engine.train_step(built.batches) for _ in range(3)]
            curves.append([value for result in results for value in (result.loss, result.grad_norm)])
            with counting() as calls:
                built.engine.train_step(built.batches)
        found[name] = curves[0], curves[1], len(calls)
    return found


@contextmanager
def counting() -> Iterator[list[int]]:
    """Collect the sizes of what is all-reduced."""
    calls: list[int] = []
    really = dist.all_reduce

    def counted(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        calls.append(tensor.numel())
        return really(tensor, *arguments, **options)

    with patch.object(dist, "all_reduce", counted):
        yield calls


@pytest.mark.parametrize("world", mostly_slow(ENGINES, len(ENGINES)))
def test_partial_gradients_are_summed_once_per_step(world: int) -> None:
    """Two layers have 12 norms and biases, and each step has two or four micro batches."""
    for name, (whole, shards, calls) in run_ranks(trained, world, ENGINES[world], timeout=200)[0].items():
        assert shards == pytest.approx(whole, rel=3e-2 if "bf16" in name else 1e-4), name
        assert calls > 30 if name == "ZeRO-3" else calls < 20, name
