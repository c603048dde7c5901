"""Ranks that save a checkpoint of one layout and load those of others."""

from __future__ import annotations

from pathlib import Path

from neoxargs.train.process import mesh, setup
from tests.support.small_gpt import small
from tests.support.trials import Training, Trial

STEPS = 3
#: The learning rate still rises when the checkpoint is written; a gate's halves are cut one by one.
COMMON = {"warmup": 0.2, "activation": "swiglu"}
Curves = dict[str, list[float]]


def write(trials: dict[str, Trial], root: str) -> Curves:
    """Save every trial after step 3; return the losses of the following steps."""
    process = setup.start("gloo", seed=1)
    found = {}
    for name, trial in trials.items():
        built = Training(trial, **COMMON, save=str(Path(root, name)))
        for _ in range(3):
            built.step()
        built.save(process, 3)
        found[name] = [built.step() for _ in range(STEPS)]
        mesh.destroy_groups()
    return found


def read(trials: dict[str, Trial], sources: list[str], root: str) -> dict[str, Curves]:
    """Return the losses of every trial after loading each of the checkpoints.

    One engine loads them one after the other: with the steps in between, what a load left out would show.
    """
    process = setup.start("gloo", seed=1)
    found: dict[str, Curves] = {}
    for name, trial in trials.items():
        built = Training(trial, **COMMON)
        found[name] = {}
        for source in sources:
            values = {key: value.value for key, value in built.config.values.items()}
            built.config = small(**values | {"load": f"{root}/{source}"})
            built.load(process)
            found[name][source] = [built.step() for _ in range(STEPS)]
        mesh.destroy_groups()
    return found
