"""Small trainings for tests: one process set runs many layouts one after the other, in the smallest model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from tests.support.small_gpt import VOCABULARY, batch, small

SAMPLES, MICRO_BATCH = 8, 2


class Trial(NamedTuple):
    """A layout: what is written for it at top level, and DeepSpeed's sections."""

    config: dict[str, Any] = {}
    deepspeed: dict[str, Any] = {}


class Losses(NamedTuple):
    """What a trial gave on one rank."""

    train: list[float]
    norms: list[float | None]
    held_out: float


def train(trials: dict[str, Trial], steps: int) -> dict[str, Losses]:
    """Every trial from the same start, `steps` steps and an evaluation."""
    from neoxargs.train.process import mesh, setup

    process = setup.start("gloo", seed=1)
    assert process.device.type == "cpu"
    _allow_fp16()
    found = {}
    for name, trial in trials.items():
        built = Built(trial)
        results = [built.engine.train_step(built.batches) for _ in range(steps)]
        held_out = built.engine.evaluate(built.micro_batches(0), 2)
        found[name] = Losses([result.loss for result in results], [result.grad_norm for result in results], held_out)
        mesh.destroy()
    return found


def resume(trials: dict[str, Trial], folder: str) -> dict[str, tuple[list[float], list[float]]]:
    """Per trial: losses of steps 4 to 6 without a break, and after loading what was saved after step 3."""
    from neoxargs.train.checkpoint.save_load import Checkpoints, Position
    from neoxargs.train.process import mesh, setup

    process = setup.start("gloo", seed=1)
    found = {}
    for name, trial in trials.items():
        place = str(Path(folder, name))
        first = Built(trial, save=place)
        losses = [first.step() for _ in range(3)]
        Checkpoints(first.config, first.engine.deepspeed, process).save(Position(3, 3 * SAMPLES))
        losses += [first.step() for _ in range(3)]
        mesh.destroy()
        second = Built(trial, load=place)
        position = Checkpoints(second.config, second.engine.deepspeed, process).load()
        second.batches = second.micro_batches(position.samples)
        found[name] = losses[3:], [second.step() for _ in range(3)]
        mesh.destroy()
    return found


def overflow(trial: Trial) -> tuple[list[float], list[bool], bool]:
    """Losses of three steps on one batch, which of them were skipped, and whether the learning rate stood still."""
    from neoxargs.train.process import mesh, setup

    setup.start("gloo", seed=1)
    _allow_fp16()
    built = Built(trial)
    rate = built.engine.learning_rate()
    results = [built.engine.train_step(built.micro_batches(0)) for _ in range(3)]
    same = built.engine.learning_rate() == rate
    mesh.destroy()
    return [result.loss for result in results], [result.skipped for result in results], same


def _allow_fp16() -> None:
    """DeepSpeed refuses fp16 on CPUs without instructions for it; torch computes it on any, slowly."""
    from deepspeed.accelerator import get_accelerator

    get_accelerator().is_fp16_supported = lambda: True


class Built:
    """A trial's engine and data."""

    def __init__(self, trial: Trial, **more: Any) -> None:
        from neoxargs.train.engine import build as engine
        from neoxargs.train.process import mesh, setup

        values = {
            "seed": 1, "lr": 1e-2, "optimizer.params.lr": 1e-2, "lr_decay_style": "cosine", "lr_decay_iters": 30,
            "warmup": 0.0, "weight_decay": 0.1, "train_batch_size": SAMPLES,
        }  # fmt: skip
        self.config = small(**values | trial.config | more)
        self.mesh = mesh.build_mesh(self.config.parallel)
        setup.set_seeds(1, stream=self.mesh.pipe.rank * self.mesh.data.size + self.mesh.data.rank)
        json = {
            "train_batch_size": SAMPLES, "train_micro_batch_size_per_gpu": MICRO_BATCH, "gradient_clipping": 1.0,
            "gradient_accumulation_steps": SAMPLES // MICRO_BATCH // self.mesh.data.size,
        }  # fmt: skip
        self.engine = engine.build(self.config, json | trial.deepspeed, VOCABULARY, self.mesh)
        self.batches = self.micro_batches(0)

    def step(self) -> float:
        return self.engine.train_step(self.batches).loss

    def micro_batches(self, consumed: int) -> Iterator[tuple[Tensor, Tensor]] | None:
        """The same five batches over and over, as every data parallel rank sees them."""
        if not self.engine.reads_data:
            return None
        return self._micro_batches(consumed // SAMPLES)

    def _micro_batches(self, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        data = self.mesh.data
        for number in itertools.count(first):
            tokens, labels = batch(SAMPLES, seed=number % 5)
            for start in range(data.rank * MICRO_BATCH, SAMPLES, data.size * MICRO_BATCH):
                mine = slice(start, start + MICRO_BATCH)
                yield tokens[mine], labels[mine]
