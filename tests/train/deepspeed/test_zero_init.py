"""ZeRO-3 with deepspeed.zero.Init has the same initial weights and losses as ZeRO-0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process.mesh import Mpu, build_mesh, destroy_groups
from neoxargs.train.process.setup import init_distributed
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY, batch, small


def trained(stages: list[int]) -> list[tuple[dict[str, Tensor], list[float]]]:
    """Return for each stage the full initial weights and the losses of a few steps."""
    return [_trained(stage) for stage in stages]


def gathered(times: int) -> list[str]:
    """Return the weights that had not arrived after one of many gathers of all weights."""
    import deepspeed

    from neoxargs.train.engine.build import zero3_partitioning

    init_distributed("gloo")
    config = small(num_layers=8, **{"zero_optimization.stage": 3})
    here = build_mesh(config)
    json = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}
    with zero3_partitioning(config, json, here):
        model = GPT(config, VOCABULARY, Weights(), Shared())
    late = set()
    for _ in range(times):
        with deepspeed.zero.GatheredParameters(list(model.parameters())):
            late |= {name for name, p in model.named_parameters() if "norm.weight" in name and not torch.all(p == 1)}
    destroy_groups()
    return sorted(late)


def _trained(stage: int) -> tuple[dict[str, Tensor], list[float]]:
    import deepspeed

    from neoxargs.train.engine.build import zero3_partitioning

    init_distributed("gloo")
    here = build_mesh(small())
    json: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}, "steps_per_print": 10**9,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
    }  # fmt: skip
    config = small(**{"zero_optimization.stage": stage})
    with zero3_partitioning(config, json, here):
        model = GPT(config, VOCABULARY, Weights(), Shared())
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    engine, *_ = deepspeed.initialize(model=model, config=json, mpu=Mpu(here))
    losses = [_step(engine, batch(2, seed=here.data.rank)) for _ in range(4)]
    engine.destroy()
    destroy_groups()
    return weights, losses


def _step(engine: Any, samples: tuple[Tensor, Tensor]) -> float:
    loss = engine(*samples)
    engine.backward(loss)
    engine.step()
    return float(loss)


@pytest.mark.slow
def test_same_start_and_same_losses() -> None:
    for (weights, losses), (partitioned, their_losses) in run_ranks(trained, 2, [0, 3]):
        for name, weight in weights.items():
            assert torch.equal(partitioned[name], weight), name
        assert losses[-1] < losses[0] - 0.3
        assert their_losses == pytest.approx(losses, rel=1e-5)


@pytest.mark.slow
def test_gathered_weights_have_arrived() -> None:
    assert run_ranks(gathered, 2, 100) == [[], []]
