"""Steps with batches of several sizes: each gradient is the mean over the samples of its own step, on every path."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch

from neoxargs.train.deepspeed import interface
from neoxargs.train.engine import build
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.trials.plain import optimizer
from tests.support.layouts import BF16, PIPE, TENSOR, TWO_STAGES
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY, batch
from tests.support.trials import MICRO_BATCH, Trial, staged, started

#: Samples of each step: a ramp whose accumulation steps are no multiples of those before, and a return.
STEPS = (4, 4, 4, 8, 12, 12, 4, 16)
#: Without learning rate schedule, and with the accumulation of the largest batch, as a configuration has it.
CHANGES: dict[str, Any] = {"lr_decay_style": "constant", "train_batch_size": 16}
BY_TOKEN = {"loss_average": "tokens"}
OFFLOAD = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
TRIALS: dict[int, dict[str, Trial]] = {
    1: {"plain": Trial(), "pipeline": Trial(PIPE), "ZeRO-1": staged(1), "plain, by token": Trial(BY_TOKEN),
        "pipeline, by token": Trial(PIPE | BY_TOKEN), "offloaded": Trial({"zero_optimization.stage": 2}, OFFLOAD)},
    2: {"dp2": Trial(), "dp2, pipeline": Trial(PIPE), "dp2, ZeRO-1": staged(1), "dp2, ZeRO-2": staged(2),
        "dp2, ZeRO-3": staged(3), "pp2": Trial(TWO_STAGES), "tp2": Trial(TENSOR), "dp2, by token": Trial(BY_TOKEN),
        "dp2, offloaded": Trial({"zero_optimization.stage": 2}, OFFLOAD)},
    4: {"dp2 x pp2": Trial(TWO_STAGES), "dp2 x pp2, ZeRO-1": staged(1, TWO_STAGES)},
}  # fmt: skip
#: Sums in fp32 that are reduced in buckets, as soon as all micro batches of the step have been added.
ROUNDED = {
    1: {"bf16": Trial({}, BF16), "bf16, pipeline": Trial(PIPE, BF16)},
    2: {"dp2, bf16": Trial({}, BF16), "dp2, bf16, ZeRO-2": staged(2, **BF16), "dp2, bf16, ZeRO-3": staged(3, **BF16)},
}


class Curve(NamedTuple):
    losses: list[float]
    norms: list[float | None]
    samples: int
    """Samples that DeepSpeed counted."""
    held_out: float


def samples() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the tokens and labels of one sample after the other; of each second one, many labels are masked."""
    for number in itertools.count():
        tokens, labels = batch(1, seed=number)
        yield tokens, torch.where(torch.arange(labels.shape[1]) < 12 * (number % 2), IGNORED, labels)


def chunks(size: int) -> Iterator[MicroBatch]:
    text = samples()
    while True:
        tokens, labels = zip(*itertools.islice(text, size), strict=True)
        yield MicroBatch(torch.cat(tokens), torch.cat(labels))


def own(rank: int, ranks: int) -> Iterator[MicroBatch]:
    """Yield the micro batches of a data parallel rank, as the data loader does."""
    return itertools.islice(chunks(MICRO_BATCH), rank, None, ranks)


def trained(trials: dict[str, Trial], steps: Sequence[int]) -> dict[str, Curve]:
    found = {}
    for name, built in started(trials, **CHANGES):
        engine, data = built.engine, built.mesh.data
        batches = own(data.rank, data.size) if engine.reads_data else None
        results = [engine.train_step(batches, size) for size in steps]
        held_out = engine.evaluate(own(data.rank, data.size) if engine.reads_data else None, 2).loss
        curve = [result.loss for result in results], [result.grad_norm for result in results]
        found[name] = Curve(*curve, engine.deepspeed.global_samples, held_out)
    return found


def in_plain_torch(steps: Sequence[int], by_token: bool) -> tuple[list[float], list[float]]:
    """Return losses and gradient norms of a loop over whole batches, with torch's optimizer."""
    [(_, built)] = started({"": Trial()}, **CHANGES)
    model = build.alone(built.config, VOCABULARY, built.mesh)
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    updates, text = optimizer(built.config, weights), chunks(MICRO_BATCH)
    losses, norms = [], []
    for size in steps:
        step = list(itertools.islice(text, size // MICRO_BATCH))
        counts = [int((each.labels != IGNORED).sum()) for each in step]
        shares = [count / sum(counts) if by_token else 1 / len(step) for count in counts]
        updates.zero_grad(set_to_none=False)
        loss = sum(model(**vars(each)) * share for each, share in zip(step, shares, strict=True))
        loss.backward()
        losses.append(loss.item())
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)))
        for group in updates.param_groups:
            group["lr"] = 1e-2
        updates.step()
    return losses, norms


@pytest.fixture(scope="module")
def expected() -> dict[bool, tuple[list[float], list[float]]]:
    return {by_token: run_ranks(in_plain_torch, 1, STEPS, by_token)[0] for by_token in (False, True)}


pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("world", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_step_is_that_of_plain_torch(world: int, expected: dict[bool, tuple[list[float], list[float]]]) -> None:
    ranks = run_ranks(trained, world, TRIALS[world], STEPS, timeout=350)
    assert all(rank == ranks[0] for rank in ranks)
    held_out = {curve.held_out for curve in ranks[0].values()}
    assert max(held_out) == pytest.approx(min(held_out), abs=1e-2)
    for name, curve in ranks[0].items():
        losses, norms = expected["by token" in name]
        assert curve.losses == pytest.approx(losses, abs=2e-4), name
        assert curve.norms == pytest.approx(norms, rel=2e-3), name
        assert curve.samples == sum(STEPS), name


@pytest.mark.parametrize("world", ROUNDED)
def test_in_bf16_it_is_that_of_plain_torch_but_for_rounding(
    world: int, expected: dict[bool, tuple[list[float], list[float]]]
) -> None:
    for name, curve in run_ranks(trained, world, ROUNDED[world], STEPS, timeout=350)[0].items():
        losses, norms = expected[False]
        assert curve.losses == pytest.approx(losses, abs=5e-2), name
        assert curve.norms == pytest.approx(norms, rel=5e-2), name


def without_reset(trials: dict[str, Trial], steps: Sequence[int]) -> dict[str, Curve]:
    """Train as DeepSpeed does by itself: the counter of micro batches goes on when the batch size changes."""
    with patch.object(interface, "set_batch_size", lambda engine, size: engine.set_train_batch_size(size)):
        return trained(trials, steps)


def test_a_step_that_ends_with_another_micro_batch_is_noticed(
    expected: dict[bool, tuple[list[float], list[float]]],
) -> None:
    [curve] = run_ranks(without_reset, 1, {"plain": Trial()}, STEPS)[0].values()
    assert curve.norms != pytest.approx(expected[False][1], rel=2e-3)
