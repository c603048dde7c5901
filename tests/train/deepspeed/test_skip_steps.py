"""A step that diverges changes nothing on any rank, in every precision and on both engines."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch

from neoxargs.train.deepspeed.optimizer_view import Holdings
from tests.support.layouts import BF16
from tests.support.ranks import run_ranks
from tests.support.trials import Training, Trial, started

FP16 = {"fp16": {"enabled": True, "initial_scale_power": 10, "loss_scale_window": 100, "hysteresis": 1}}
#: The step that diverges, counted from 0, of `STEPS`.
BAD, STEPS = 2, 5


def trial(deepspeed: dict[str, Any], stage: int = 0, **config: Any) -> Trial:
    zero = {"zero_optimization": {"stage": stage}} if stage else {}
    return Trial({"on_divergence": "skip", "zero_optimization.stage": stage, **config}, {**deepspeed, **zero})


#: Layouts on two ranks by name; those of replicas, of tensor parallel ranks, and of pipeline stages.
LAYOUTS = {
    "fp32": trial({}),
    "fp32 tp": trial({}, model_parallel_size=2),
    "fp32 ZeRO-1": trial({}, 1),
    "fp32 ZeRO-2": trial({}, 2),
    "fp32 ZeRO-3": trial({}, 3),
    "fp32 pp": trial({}, pipe_parallel_size=2),
    "bf16": trial(BF16),
    "bf16 ZeRO-1": trial(BF16, 1),
    "bf16 ZeRO-2": trial(BF16, 2),
    "bf16 ZeRO-3": trial(BF16, 3),
    "bf16 pp": trial(BF16, pipe_parallel_size=2),
    "bf16 pp ZeRO-1": trial(BF16, 1, pipe_parallel_size=2),
    "fp16": trial(FP16),
    "fp16 ZeRO-1": trial(FP16, 1),
    "fp16 ZeRO-2": trial(FP16, 2),
    "fp16 ZeRO-3": trial(FP16, 3),
    "fp16 pp": trial(FP16, pipe_parallel_size=2),
}


class Outcome(NamedTuple):
    """What one rank saw."""

    losses: list[float]
    skipped: list[bool]
    overflowed: list[bool]
    changed: list[bool]
    """Whether the step changed this rank's weights or optimizer state."""
    rates: list[float]
    """The learning rate before each step, and after the last."""
    scales: list[float]
    """The loss scale before the step that diverges, and after it."""


def diverge(trials: dict[str, Trial], rank: int) -> dict[str, Outcome]:
    """Train each; the gradients of some weights on this rank alone are NaN in one step."""
    return {name: _outcome(built, inject=torch.distributed.get_rank() == rank) for name, built in started(trials)}


def _outcome(built: Training, inject: bool) -> Outcome:
    engine, step = built.engine.deepspeed, [0]
    norm = next(layer for name, layer in engine.module.named_modules() if name.endswith("norm"))

    def poison(layer: Any, inputs: Any, output: torch.Tensor) -> None:
        if step[0] == BAD and output.requires_grad:
            output.register_hook(lambda gradient: gradient * float("nan"))

    if inject:
        norm.register_forward_hook(poison)
    results, changed, rates, scales = [], [], [], []
    holdings = Holdings(engine, built.mesh)

    def tensors() -> list[torch.Tensor]:
        states = [state for shards in holdings.states().values() for state in shards.values()]
        # ZeRO-3 gathers and releases the weights of the model as it needs them
        weights = [weight for weight in engine.module.parameters() if not hasattr(weight, "ds_id")]
        return [*weights, *holdings.values().values(), *states]

    for number in range(STEPS):
        step[0] = number
        rates.append(built.engine.learning_rate())
        before = [tensor.detach().clone() for tensor in tensors()]
        scale = float(getattr(engine.optimizer, "loss_scale", 1.0))
        results.append(built.engine.train_step(built.batches))
        after = tensors()
        changed.append(len(before) != len(after) or not all(map(torch.equal, before, after)))
        if number == BAD:
            scales += [scale, float(getattr(engine.optimizer, "loss_scale", 1.0))]
    rates.append(built.engine.learning_rate())
    return Outcome([x.loss for x in results], [x.skipped for x in results], [x.overflowed for x in results],
                   changed, rates, scales)  # fmt: skip


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Outcome]]:
    """Those of each rank, where rank 1 diverges."""
    return run_ranks(diverge, 2, LAYOUTS, 1)


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_ranks_nan_is_skipped_by_all(outcomes: list[dict[str, Outcome]], layout: str) -> None:
    others = [number != BAD for number in range(STEPS)]
    for outcome in (rank[layout] for rank in outcomes):
        assert outcome.skipped == [number == BAD for number in range(STEPS)]
        assert outcome.changed == others
        assert [before != after for before, after in zip(outcome.rates, outcome.rates[1:], strict=False)] == others
        assert all(map(math.isfinite, outcome.losses))
        assert outcome.overflowed[BAD] is layout.startswith("fp16")
        before, after = outcome.scales
        assert after == (before / 2 if layout.startswith("fp16") else before)
