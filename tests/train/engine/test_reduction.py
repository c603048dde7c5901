"""bf16: sums of gradients in fp32 stay fp32 when they are reduced over data parallel ranks, on every path."""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from neoxargs.train.deepspeed import buckets
from neoxargs.train.deepspeed.optimizer_view import Holdings, before_step
from neoxargs.train.deepspeed.weight_names import named_weights
from tests.support.layouts import PIPE
from tests.support.ranks import run_ranks
from tests.support.trials import Trial, started

#: Elements of the smallest weight matrix of a trial; collectives of less are norms and flags.
MATRIX = 32 * 32


def bf16(stage: int = 0, zero: dict[str, Any] | None = None, **config: Any) -> Trial:
    json: dict[str, Any] = {"bf16": {"enabled": True}}
    if stage:
        json["zero_optimization"] = {"stage": stage} | (zero or {})
    return Trial({"zero_optimization.stage": stage, **config}, json)


def chosen(trial: Trial, **json: Any) -> Trial:
    return Trial(trial.config, trial.deepspeed | json)


SMALL: dict[str, Any] = {"zero_optimization.reduce_bucket_size": 3000}
IN_BUCKETS = {
    "plain": bf16(),
    "pipeline": bf16(**PIPE),
    "ZeRO-1": bf16(1),
    "ZeRO-1, many buckets": bf16(1, **SMALL),
    "ZeRO-1, pipeline, many buckets": bf16(1, **PIPE, **SMALL),
    "immediate": chosen(bf16(), bf16={"enabled": True, "immediate_grad_update": True}),
    "divided before": chosen(bf16(), prescale_gradients=True),
    "divided before in part": chosen(bf16(), gradient_predivide_factor=2.0),
    "LoRA": bf16(**{"lora.rank": 4}),
    "an optimizer that DeepSpeed builds": chosen(
        bf16(**{"optimizer.type": "RMSprop"}), optimizer={"type": "RMSprop", "params": {"lr": 1e-2}}
    ),
}
NOT_DURING = {"ZeRO-1, not overlapped": bf16(1, {"overlap_comm": False}, **SMALL)}
IN_FP32 = (
    IN_BUCKETS
    | NOT_DURING
    | {
        "ZeRO-2": bf16(2),
        "ZeRO-2, overlap": bf16(2, {"overlap_comm": True}),
        "ZeRO-2, all-reduce": bf16(2, {"reduce_scatter": False}),
        "ZeRO-2, small buckets": bf16(2, {"reduce_bucket_size": 2000}),
        "ZeRO-2, not contiguous": bf16(2, {"contiguous_gradients": False}),
        "ZeRO-3": bf16(3),
        "ZeRO-3, all-reduce": bf16(3, {"reduce_scatter": False}),
    }
)
IN_BF16 = {
    "chosen": chosen(bf16(), communication_data_type="bf16"),
    "chosen, ZeRO-2": chosen(bf16(2), communication_data_type="bf16"),
    "chosen, ZeRO-3": chosen(bf16(3), communication_data_type="bf16"),
    "sums in bf16": chosen(bf16(), data_types={"grad_accum_dtype": "bf16"}),
}
FP32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}
BY_FOUR = {
    "four replicas": chosen(bf16(**SMALL), **FP32_SUMS),
    "four replicas, ZeRO-2": chosen(bf16(2), **FP32_SUMS),
    "four replicas, ZeRO-3": chosen(bf16(3), **FP32_SUMS),
    "two stages": bf16(pipe_parallel_size=2, **SMALL),
    "two stages, untied": bf16(pipe_parallel_size=2, no_weight_tying=True, **SMALL),
}


class Collective(NamedTuple):
    """A call of a rank that reduces what could be a gradient."""

    operator: str
    dtype: torch.dtype
    ranks: int
    size: int
    """Bytes."""
    during: bool
    """Whether the backward pass was running."""


class Seen(NamedTuple):
    """What one rank of a trial sent, its shards of the gradients before the step, and their norm."""

    sent: list[Collective]
    gradients: dict[str, Tensor]
    norm: float | None


def reduced(trials: dict[str, Trial]) -> dict[str, Seen]:
    found = {}
    for name, built in started(trials):
        holdings = Holdings(built.engine.deepspeed, built.mesh)
        gradients: dict[str, Tensor] = {}

        def copy(holdings: Holdings = holdings, gradients: dict[str, Tensor] = gradients) -> None:
            gradients.update({name: x.detach().clone() for name, x in holdings.gradients().items()})

        before_step(built.engine.deepspeed, copy)
        with _listening() as sent:
            norm = built.engine.train_step(built.batches).grad_norm
        found[name] = Seen(sent, gradients, norm)
    return found


def in_one_process(trials: dict[str, Trial]) -> dict[str, dict[str, Tensor]]:
    """Return the sums of the same gradients of micro batches in fp64, in one process."""
    found = {}
    for name, built in started(trials):
        sums: dict[str, Any] = defaultdict(lambda: torch.zeros((), dtype=torch.float64))
        for weight_name, weight in named_weights(built.engine.deepspeed.module).items():
            if weight.requires_grad:

                def add(weight: Any, name: str = weight_name, sums: dict[str, Any] = sums) -> None:
                    sums[name] = sums[name] + weight.grad.double()
                    weight.grad.zero_()

                weight.register_post_accumulate_grad_hook(add)
        built.engine.train_step(built.batches)
        found[name] = dict(sums)
    return found


@contextmanager
def _listening() -> Iterator[list[Collective]]:
    """Record every tensor that is reduced and could be a gradient."""
    from deepspeed import comm
    from deepspeed.runtime.comm import coalesced_collectives

    sent: list[Collective] = []
    running: list[bool] = []
    backward = torch.autograd.backward

    def watched(*arguments: Any, **keywords: Any) -> None:
        running.append(True)
        try:
            backward(*arguments, **keywords)
        finally:
            running.pop()

    def recording(name: str, inner: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            # Of a reduce-scatter, the output comes first and has the same type.
            tensor = next(x for x in (*arguments, *keywords.values()) if torch.is_tensor(x))
            if tensor.numel() >= MATRIX // 2:
                groups = [x for x in (*arguments, *keywords.values()) if isinstance(x, torch.distributed.ProcessGroup)]
                ranks = torch.distributed.get_world_size(groups[0] if groups else None)
                size = tensor.numel() * tensor.element_size()
                sent.append(Collective(name, tensor.dtype, ranks, size, bool(running)))
            return inner(*arguments, **keywords)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "reduce", "reduce_scatter_fn"):
            patch.setattr(comm, name, recording(name, getattr(comm, name)))
        for module, name in ((coalesced_collectives, "_torch_reduce_scatter_fn"), (buckets, "reduce_scatter")):
            patch.setattr(module, name, recording("reduce_scatter", getattr(module, name)))
        patch.setattr(torch.autograd, "backward", watched)
        yield sent


def error(ranks: list[dict[str, Seen]], name: str, whole: dict[str, Tensor]) -> float:
    """Return the relative error of the gradients that all ranks of a trial together have."""
    difference = square = 0.0
    for weight, wanted in whole.items():
        shards = [rank[name].gradients[weight] for rank in ranks if weight in rank[name].gradients]
        got = torch.cat(shards).double()
        difference += float((got - wanted.flatten()).square().sum())
        square += float(wanted.square().sum())
    return float((difference / square) ** 0.5)


@pytest.fixture(scope="module")
def by_two() -> list[dict[str, Seen]]:
    return run_ranks(reduced, 2, IN_FP32 | IN_BF16, timeout=550)


@pytest.fixture(scope="module")
def by_four() -> list[dict[str, Seen]]:
    return run_ranks(reduced, 4, BY_FOUR, timeout=550)


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Tensor]]:
    trials = {"tied": bf16(), "untied": bf16(no_weight_tying=True), "LoRA": IN_BUCKETS["LoRA"]}
    found: dict[str, dict[str, Tensor]] = run_ranks(in_one_process, 1, trials, timeout=300)[0]
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", IN_FP32)
def test_fp32_sums_are_reduced_in_fp32(
    by_two: list[dict[str, Seen]], alone: dict[str, dict[str, Tensor]], name: str
) -> None:
    """Their mean is that of one process, whose sums are in fp64."""
    seen = by_two[0][name]
    assert {each.dtype for each in seen.sent} == {torch.float32}
    assert {each.ranks for each in seen.sent} == {2}
    assert error(by_two, name, alone.get(name, alone["tied"])) < 1e-6


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", BY_FOUR)
def test_among_four_ranks_too(by_four: list[dict[str, Seen]], alone: dict[str, dict[str, Tensor]], name: str) -> None:
    for rank in by_four:
        assert {each.dtype for each in rank[name].sent} == {torch.float32}
    whole = dict(alone["untied" if "untied" in name else "tied"])
    if name == "two stages":  # one process adds both gradients of the tied weight in bf16, before they are accumulated
        (tied,) = (weight for weight in whole if "embedding" in weight)
        assert error(by_four, name, {tied: whole.pop(tied)}) < 5e-3
    assert error(by_four, name, whole) < 1e-6
    assert len({rank[name].norm for rank in by_four}) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_buckets_are_reduced_during_the_backward_pass(by_two: list[dict[str, Seen]]) -> None:
    """Each rank receives its half of them, and each gradient is sent once."""
    for name in IN_BUCKETS:
        sent = by_two[0][name].sent
        assert {each.operator for each in sent} == {"reduce_scatter"}, name
        assert all(each.during for each in sent), name
    assert len(by_two[0]["ZeRO-1, many buckets"].sent) > len(by_two[0]["ZeRO-1"].sent)
    for name in NOT_DURING:
        assert not any(each.during for each in by_two[0][name].sent)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", IN_BF16)
def test_the_users_choice_of_the_type_is_kept(
    by_two: list[dict[str, Seen]], alone: dict[str, dict[str, Tensor]], name: str
) -> None:
    assert {each.dtype for each in by_two[0][name].sent} == {torch.bfloat16}
    assert error(by_two, name, alone["tied"]) > 1e-3


def kept(names: list[str]) -> list[str]:
    """Return those of IN_BUCKETS whose engine is still there after a step, its end and a collection of garbage."""
    found = []
    for name, training in started({name: IN_BUCKETS[name] for name in names}):
        training.step()
        engine = weakref.ref(training.engine.deepspeed)
        engine().destroy()  # type: ignore[misc]
        del training
        gc.collect()
        found += [name] if engine() else []
    return found


def test_an_engine_that_is_destroyed_is_freed() -> None:
    """Otherwise, it would keep the threads of its process groups."""
    assert run_ranks(kept, 2, ["plain", "ZeRO-1, many buckets"]) == [[], []]
