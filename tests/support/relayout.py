"""Ranks that save a checkpoint of one layout and load those of others."""

from __future__ import annotations

from pathlib import Path

from tests.support.small_gpt import small
from tests.support.trials import SAMPLES, Training, Trial

STEPS = 3
#: The learning rate still rises when the checkpoint is written; a gate's halves are cut one by one.
COMMON = {"warmup": 0.2, "activation": "swiglu"}
Curves = dict[str, list[float]]


def write(trials: dict[str, Trial], root: str) -> Curves:
    """Save every trial after step 3; return the losses of the following steps."""
    from neoxargs.train.checkpoint.save_load import Checkpoints
    from neoxargs.train.checkpoint.saving import Position
    from neoxargs.train.process import mesh, setup

    process = setup.start("gloo", seed=1)
    found = {}
    for name, trial in trials.items():
        built = Training(trial, **COMMON, save=str(Path(root, name)))
        for _ in range(3):
            built.step()
        Checkpoints(built.config, built.engine.deepspeed, process).save(Position(3, 3 * SAMPLES))
        found[name] = [built.step() for _ in range(STEPS)]
        mesh.destroy_groups()
    return found


def read(trials: dict[str, Trial], sources: list[str], root: str) -> dict[str, Curves]:
    """Return the losses of every trial after loading each of the checkpoints.

    One engine loads them one after the other: with the steps in between, what a load left out would show.
    """
    from neoxargs.train.checkpoint.save_load import Checkpoints
    from neoxargs.train.process import mesh, setup

    process = setup.start("gloo", seed=1)
    found: dict[str, Curves] = {}
    for name, trial in trials.items():
        built = Training(trial, **COMMON)
        found[name] = {}
        for source in sources:
            config = small(**{key: value.value for key, value in built.config.values.items()}, load=f"{root}/{source}")
            position = Checkpoints(config, built.engine.deepspeed, process).load()
            built.batches = built.micro_batches(position.samples)
            found[name][source] = [built.step() for _ in range(STEPS)]
        mesh.destroy_groups()
    return found
