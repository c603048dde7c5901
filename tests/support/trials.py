"""Small training runs for tests: one set of processes trains the smallest model on many layouts in turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from neoxargs.facts.position import Position
from neoxargs.train.checkpoint.save_load import Checkpoints
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.process import mesh, setup
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY, batch, small

SAMPLES, MICRO_BATCH = 8, 2


class Trial(NamedTuple):
    """A configuration to train: changes of the parameters, and of DeepSpeed's JSON."""

    config: dict[str, Any] = {}
    deepspeed: dict[str, Any] = {}


def staged(stage: int, config: dict[str, Any] | None = None, **sections: Any) -> Trial:
    """Return a trial of a ZeRO stage. sections: of DeepSpeed's JSON."""
    json = {"zero_optimization": {"stage": stage}, **sections}
    return Trial({"zero_optimization.stage": stage, **(config or {})}, json)


class Losses(NamedTuple):
    """Losses and gradient norms of a trial on one rank."""

    train: list[float]
    norms: list[float | None]
    held_out: float


def started(trials: dict[str, Trial], **changes: Any) -> Iterator[tuple[str, Training]]:
    """Yield one trial after the other, each with process groups of its own, on this rank."""
    setup.start("nccl", seed=1)  # gloo on a machine without GPUs
    allow_fp16()
    for name, trial in trials.items():
        yield name, Training(trial, **changes)
        mesh.destroy_groups()


def train(trials: dict[str, Trial], steps: int) -> dict[str, Losses]:
    """Train each trial for `steps` steps from the same weights, and evaluate it."""
    outcomes = {}
    for name, training in started(trials):
        results = [training.engine.train_step(training.batches) for _ in range(steps)]
        held_out = training.engine.evaluate(training.micro_batches(0), 2).loss
        outcomes[name] = Losses([result.loss for result in results], [result.grad_norm for result in results], held_out)
    return outcomes


def curves(worlds: dict[int, dict[str, Trial]], steps: int, timeout: float = 550) -> dict[str, Losses]:
    """Train on each number of ranks; return what rank 0 reports of every trial. All ranks must report the same."""
    found: dict[str, Losses] = {}
    for world, trials in worlds.items():
        ranks = run_ranks(train, world, trials, steps, timeout=timeout)
        assert all(rank == ranks[0] for rank in ranks)
        found |= ranks[0]
    return found


def assert_same_curve(here: Losses, other: Losses, norms: float = 2e-3) -> None:
    """norms: the largest relative difference of gradient norms."""
    assert here.train[0] == pytest.approx(other.train[0], abs=1e-5)
    assert here.train == pytest.approx(other.train, abs=1e-3)
    assert here.norms == pytest.approx(other.norms, rel=norms)
    assert here.held_out == pytest.approx(other.held_out, abs=1e-3)


def resume(trials: dict[str, Trial], folder: str) -> dict[str, tuple[list[float], list[float]]]:
    """Return for each trial the losses of steps 4 to 6: uninterrupted, and resumed from a checkpoint of step 3."""
    process = setup.start("nccl", seed=1)
    outcomes = {}
    for name, trial in trials.items():
        path = str(Path(folder, name))
        first = Training(trial, save=path)
        losses = [first.step() for _ in range(3)]
        first.save(process, 3)
        losses += [first.step() for _ in range(3)]
        mesh.destroy_groups()
        second = Training(trial, load=path)
        second.load(process)
        outcomes[name] = losses[3:], [second.step() for _ in range(3)]
        mesh.destroy_groups()
    return outcomes


def saved_after_three(trial: Trial, folder: str) -> list[float]:
    """Save a checkpoint of step 3, and return the losses of steps 4 to 6."""
    process, training = setup.start("nccl", seed=1), Training(trial, save=folder)
    for _ in range(3):
        training.step()
    training.save(process, 3)
    return [training.step() for _ in range(3)]


def resumed(trials: dict[str, Trial], folder: str) -> dict[str, list[float]]:
    """Return for each trial the losses of steps 4 to 6 from the checkpoint in the folder."""
    process, found = setup.start("nccl", seed=1), {}
    for name, trial in trials.items():
        training = Training(trial, load=folder)
        training.load(process)
        found[name] = [training.step() for _ in range(3)]
        mesh.destroy_groups()
    return found


def overflow(trial: Trial) -> tuple[list[float], list[bool], bool]:
    """Return of three steps on one batch the losses, which were skipped, and whether the learning rate is unchanged."""
    _, training = next(started({"": trial}))
    rate = training.engine.learning_rate()
    results = [training.engine.train_step(training.micro_batches(0)) for _ in range(3)]
    unchanged = training.engine.learning_rate() == rate
    return [result.loss for result in results], [result.skipped for result in results], unchanged


def allow_fp16() -> None:
    """Override DeepSpeed's refusal of fp16 on CPUs without instructions for it; torch emulates them."""
    from deepspeed.accelerator import get_accelerator

    get_accelerator().is_fp16_supported = lambda: True


class Training:
    """Engine and data of a trial."""

    def __init__(self, trial: Trial, **changes: Any) -> None:
        from neoxargs.train.engine import build as engine

        values = {
            "seed": 1, "lr": 1e-2, "optimizer.params.lr": 1e-2, "lr_decay_style": "cosine", "lr_decay_iters": 30,
            "warmup": 0.0, "weight_decay": 0.1, "train_batch_size": SAMPLES,
        }  # fmt: skip
        self.config = small(**values | trial.config | changes)
        self.mesh = mesh.build_mesh(self.config)
        setup.seed_by_place(1, self.mesh)
        json = {
            "train_batch_size": SAMPLES, "train_micro_batch_size_per_gpu": MICRO_BATCH, "gradient_clipping": 1.0,
            "gradient_accumulation_steps": SAMPLES // MICRO_BATCH // self.mesh.samples.size,
        }  # fmt: skip
        self.engine = engine.build(self.config, json | trial.deepspeed, VOCABULARY, self.mesh)
        self.batches = self.micro_batches(0)

    def step(self) -> float:
        return self.engine.train_step(self.batches).loss

    def checkpoints(self, process: setup.Process) -> Checkpoints:
        return Checkpoints(self.config, self.engine.deepspeed, process)

    def save(self, process: setup.Process, iteration: int) -> None:
        """Save a checkpoint of this iteration."""
        self.checkpoints(process).save(Position(iteration, iteration * SAMPLES))

    def load(self, process: setup.Process) -> Position:
        """Load the checkpoint and continue with the batches that follow it."""
        position = self.checkpoints(process).load()
        self.batches = self.micro_batches(position.samples)
        return position

    def micro_batches(self, consumed: int) -> Iterator[MicroBatch] | None:
        """Yield this rank's micro batches of five batches that repeat, after `consumed` samples."""
        if not self.engine.reads_data:
            return None
        return self._micro_batches(consumed // SAMPLES)

    def _micro_batches(self, first: int) -> Iterator[MicroBatch]:
        data = self.mesh.samples
        for number in itertools.count(first):
            tokens, labels = batch(SAMPLES, seed=number % 5)
            for start in range(data.rank * MICRO_BATCH, SAMPLES, data.size * MICRO_BATCH):
                own = slice(start, start + MICRO_BATCH)
                yield MicroBatch(
                    self._as_loaded(tokens[own]), self._as_loaded(labels[own]), reference=self._reference()
                )

    def _reference(self) -> Tensor | None:
        """Return log-probabilities for preference training."""
        prefers = self.config.post_training.train_impl == "dpo"
        return self._as_loaded(torch.linspace(-60.0, -50.0, MICRO_BATCH)) if prefers else None

    def _as_loaded(self, x: Tensor) -> Tensor:
        """Pin the tensor for a GPU, as the data loader does."""
        return x.pin_memory() if self.engine.deepspeed.device.type == "cuda" else x
