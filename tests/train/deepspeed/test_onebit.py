"""1-bit optimizers on gloo: what is sent adds up to the average, and training goes on as with Adam."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from neoxargs.train.process import mesh
from tests.support.deepspeed_version import needs_onebit
from tests.support.layouts import BF16, FP16, PIPE
from tests.support.ranks import all_ranks, run_ranks
from tests.support.trials import Losses, Training, Trial, resume, train

pytestmark = [pytest.mark.slow, needs_onebit]

FREEZE, STEPS = 12, 32
COMMON: dict[str, Any] = {
    "lr": 3e-3, "optimizer.params.lr": 3e-3, "warmup": 0.2, "lr_decay_iters": 60, "optimizer.params.betas": [0.9, 0.95],
}  # fmt: skip


def onebit(kind: str = "OneBitAdam", freeze: int = FREEZE, **more: Any) -> dict[str, Any]:
    return COMMON | {"optimizer.type": kind, "optimizer.params.freeze_step": freeze} | more


TRIALS = {
    "Adam": Trial(COMMON),
    "plain": Trial(onebit()),
    "pipeline": Trial(onebit() | PIPE),
    "plain, bf16": Trial(onebit(), BF16),
    "pipeline, bf16": Trial(onebit() | PIPE, BF16),
    "plain, fp16": Trial(onebit(), FP16),
    "pipeline, fp16": Trial(onebit() | PIPE, FP16),
    "never compressed": Trial(onebit(freeze=1000)),
    "ZeroOneAdam": Trial(onebit("ZeroOneAdam") | {"optimizer.params.var_update_scaler": 4}),
    "OneBitLamb": Trial(onebit("OneBitLamb") | {"optimizer.params.lr": 3e-2, "lr": 3e-2}),
}


def averages(count: int) -> tuple[list[Tensor], Tensor]:
    """Return repeated compressed averages of the same tensors, and their exact average."""
    from neoxargs.train.deepspeed.onebit import Compression

    axis = all_ranks()
    torch.manual_seed(axis.rank)
    mine = torch.randn(7, 5)
    padded = 8 * axis.size * -(-35 // (8 * axis.size))
    errors = torch.zeros(padded), torch.zeros(padded // axis.size)
    found = [Compression(axis).compressed_allreduce(mine.clone(), *errors) for _ in range(count)]
    torch.distributed.all_reduce(mine)
    return found, mine / axis.size


def inside(layout: dict[str, Any]) -> list[tuple[bool, float, float]]:
    """Return per step whether DeepSpeed averages gradients, the sum of second moments, and the sum of all weights."""
    built, found = Training(Trial(onebit(freeze=3) | layout)), []
    engine = built.engine.deepspeed
    switch = "pipeline_enable_backward_allreduce" if layout else "enable_backward_allreduce"
    for _ in range(6):
        built.step()
        squares = sum(float(state["exp_avg_sq"].double().sum()) for state in engine.optimizer.state.values())
        weights = sum(float(weight.detach().double().sum()) for weight in engine.module.parameters())
        found.append((getattr(engine, switch), squares, weights))
    mesh.destroy_groups()
    return found


#: Elements of a tensor: fewer than ranks, than bits in a byte, no multiple of either, and a whole multiple.
SIZES, RANKS, ROUNDS = (1, 5, 35, 1001, 96), 3, 4


def gradients(rank: int, size: int) -> np.ndarray:
    """(rounds, size): what a rank gives into each round, exact zeros among it."""
    return np.random.default_rng([rank, size]).normal(size=(ROUNDS, size)).round(1).astype(np.float32)


def padded(size: int, ranks: int) -> int:
    """Return DeepSpeed's padded size: an equal number of whole bytes for each rank."""
    unit = ranks * math.lcm(ranks, 8)
    return -(-size // unit) * unit


def compressed() -> dict[int, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """Return per size and round the average, and this rank's errors as worker and server."""
    from neoxargs.train.deepspeed.onebit import Compression

    axis, found = all_ranks(), {}
    for size in SIZES:
        worker = torch.zeros(padded(size, RANKS))
        server = torch.zeros(len(worker) // RANKS)
        found[size] = []
        for given in torch.from_numpy(gradients(axis.rank, size)):
            average = Compression(axis).compressed_allreduce(given.clone(), worker, server)
            found[size].append((average.numpy(), worker.numpy().copy(), server.numpy().copy()))
    return found


def reference(size: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Reference for all ranks at once: Tang et al. 2021, algorithm 1, in double precision.

    (size), (ranks, padded), (ranks, padded / ranks)
    """
    length = padded(size, RANKS)
    worker, server = np.zeros((RANKS, length)), np.zeros((RANKS, length // RANKS))

    def one_bit(rows: np.ndarray) -> np.ndarray:
        scales = np.sqrt((rows**2).mean(axis=1, keepdims=True))
        return np.where(rows >= 0, scales, -scales)

    for given in np.stack([gradients(rank, size) for rank in range(RANKS)], axis=1):
        corrected = np.pad(given, ((0, 0), (0, length - size))) + worker
        sent = one_bit(corrected)
        worker = corrected - sent
        received = sent.mean(axis=0).reshape(RANKS, -1) + server
        answered = one_bit(received)
        server = received - answered
        yield answered.flatten()[:size], worker, server


class Seen(NamedTuple):
    """Observations of one rank."""

    averages: tuple[list[Tensor], Tensor]
    losses: dict[str, Losses]
    inside: dict[str, list[tuple[bool, float, float]]]


def everything() -> Seen:
    """Run all cases in one set of processes, because starting them takes longer than the cases."""
    losses = train(TRIALS, STEPS)
    return Seen(averages(200), losses, {"plain": inside({}), "pipeline": inside(PIPE)})


@pytest.fixture(scope="module")
def seen() -> list[Seen]:
    return run_ranks(everything, 2, timeout=280)


@pytest.fixture(scope="module")
def losses(seen: list[Seen]) -> dict[str, Losses]:
    assert seen[0].losses == seen[1].losses
    return seen[0].losses


def test_compressed_averages_add_up_to_the_average(seen: list[Seen]) -> None:
    for found, true in (rank.averages for rank in seen):
        assert all(torch.equal(a, b) for a, b in zip(found, seen[0].averages[0], strict=True))
        assert found[0].abs().unique().numel() == 2  # one scale per rank's chunk, and a sign for each number
        assert (found[0] - true).norm() > 0.2 * true.norm()
        assert (torch.stack(found).mean(0) - true).norm() < 0.05 * true.norm()


def test_every_round_is_the_papers_on_any_size() -> None:
    for rank, found in enumerate(run_ranks(compressed, RANKS)):
        for size, rounds in found.items():
            for (average, worker, server), (wanted, workers, servers) in zip(rounds, reference(size), strict=True):
                np.testing.assert_allclose(average, wanted, rtol=1e-5)
                np.testing.assert_allclose(worker, workers[rank], atol=1e-5)
                np.testing.assert_allclose(server, servers[rank], atol=1e-5)


@pytest.mark.shows("onebitadam")
@pytest.mark.parametrize("name", [name for name in TRIALS if name.startswith(("plain", "pipeline"))])
def test_onebit_adam_converges_like_adam(losses: dict[str, Losses], name: str) -> None:
    here, adam = losses[name], losses["Adam"]
    assert here.train[FREEZE] < here.train[0] - 0.1
    assert here.held_out < here.train[FREEZE] - 0.3
    assert here.held_out == pytest.approx(adam.held_out, abs=0.05)
    assert here.train == pytest.approx(losses["plain"].train, abs=0.02)


def test_before_the_freeze_step_nothing_is_compressed_and_after_it_everything(losses: dict[str, Losses]) -> None:
    here, never = losses["plain"].train, losses["never compressed"].train
    assert here[: FREEZE + 1] == pytest.approx(never[: FREEZE + 1], abs=1e-6)
    assert here[FREEZE + 1 :] != pytest.approx(never[FREEZE + 1 :], abs=1e-5)


@pytest.mark.parametrize("name", ["ZeroOneAdam", "OneBitLamb"])
def test_the_others_learn_too(losses: dict[str, Losses], name: str) -> None:
    assert losses[name].held_out < losses[name].train[0] - 0.1


@pytest.mark.parametrize("engine", ["plain", "pipeline"])
def test_frozen_the_ranks_average_momentum_themselves(seen: list[Seen], engine: str) -> None:
    first, second = (rank.inside[engine] for rank in seen)
    assert [on for on, _, _ in first] == [True, True, False, False, False, False]
    squares = [squares for _, squares, _ in first]
    assert squares[0] < squares[1] < squares[2] == squares[3] == squares[5]
    assert first == second
    assert first[3][2] != first[4][2]


WARM = {"fp32": Trial(onebit()), "bf16, pipeline": Trial(onebit() | PIPE, BF16)}
FROZEN = {"frozen": Trial(onebit(freeze=2)), "frozen, bf16, pipeline": Trial(onebit(freeze=2) | PIPE, BF16)}


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    """Exact before compression starts; then up to the rounding errors, which differ between ranks."""
    for rank in run_ranks(resume, 2, WARM | FROZEN, str(tmp_path)):
        for name, (unbroken, resumed) in rank.items():
            assert resumed == (unbroken if name in WARM else pytest.approx(unbroken, abs=0.01)), name
            assert resumed[0] == unbroken[0]
