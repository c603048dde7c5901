"""Trials on ranks with a simulated GPU: losses, and what makes the host wait in one step."""

from __future__ import annotations

import traceback
from typing import NamedTuple

from tests.support.simulated_gpu.waits import Wait, recorded
from tests.support.trials import Losses, Training, Trial, allow_fp16

STEPS = 3


class Measured(NamedTuple):
    """One trial on one rank."""

    losses: Losses | None
    waits: list[Wait]
    """Of the last step, because the first steps also initialise; without reading its result."""
    error: str = ""
    """The traceback if the trial failed; the other trials still run."""


def measure(trials: dict[str, Trial]) -> dict[str, Measured]:
    """Train each trial for `STEPS` steps from the same weights, and evaluate it."""
    from neoxargs.train.process import setup

    setup.start("nccl", seed=1)
    allow_fp16()
    return {name: _attempt(trial) for name, trial in trials.items()}


def _attempt(trial: Trial) -> Measured:
    from neoxargs.train.process import mesh

    try:
        return _measure(trial)
    except Exception:
        return Measured(None, [], traceback.format_exc())
    finally:
        mesh.destroy_groups()


def _measure(trial: Trial) -> Measured:
    training = Training(trial)
    weight = next(training.engine.deepspeed.module.parameters())
    assert weight.is_cuda or weight.numel() == 0 or "offload_param" in str(trial.deepspeed)
    results = [training.engine.train_step(training.batches) for _ in range(STEPS - 1)]
    with recorded() as waits:
        result = training.engine.take_step(training.batches, (0, 0))
    results.append(result())
    held_out = training.engine.evaluate(training.micro_batches(0), 2).loss
    losses = Losses([result.loss for result in results], [result.grad_norm for result in results], held_out)
    return Measured(losses, list(waits))
