"""What a trial shows: losses, gradients and weights, what the run writes, and properties of the trained model."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.targets.trial import Trial
from neoxargs.targets.wire_format import RankArguments, parse_rank_arguments
from neoxargs.train.checkpoint import inventory
from neoxargs.train.checkpoint.weights_by_name import SavedWeights
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.parallel.layers import shards_of, unsharded_shape
from neoxargs.train.process import setup
from neoxargs.train.process.collectives import of_all_ranks
from neoxargs.train.run import assemble
from neoxargs.train.track.tracker import Evaluation, Step, Tracker
from neoxargs.train.trials import plain
from neoxargs.train.trials.properties import properties

#: What is observed, as JSON.
Observed = dict[str, Any]
#: Beginning of the names of single weights' gradient norms in the reports of a step.
GRADIENTS = "gradient_norms/"


class Recorder(Tracker):
    """Keeps the numbers of a run."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.evaluations: list[Evaluation] = []
        self.saved: list[int] = []

    def on_step(self, step: Step) -> None:
        self.steps.append(step)

    def on_eval(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)

    def on_save(self, iteration: int, folder: Path) -> None:
        self.saved.append(iteration)


def observe(trial: Trial, process: setup.Process) -> Observed:
    """Run a trial and return what it shows. Collective; only rank 0's result is complete. Raises Problems."""
    arguments = parse_rank_arguments(trial.arguments)
    if trial.in_plain_torch:
        return _in_plain_torch(trial, arguments, process)
    config = arguments.config
    loop = assemble(arguments, process)
    module = loop.trainer.deepspeed.module
    recorder, before = Recorder(), _held(module)
    loop.trackers.each.append(recorder)
    loop.run()
    loop.data.comparison.end()
    found = {
        "evaluated": [[each.iteration, each.split, each.loss] for each in recorder.evaluations],
        "saved": recorder.saved,
        "moved": _movements(before, module),
        "replicas_differ": _unequal_replicas(module),
        "properties": properties(loop, config, thoroughly=trial.with_properties),
        **_numbers(recorder.steps),
    }
    return {**found, **_written(config), **_compared(config, trial.reference)} if process.main else {}


def _in_plain_torch(trial: Trial, arguments: RankArguments, process: setup.Process) -> Observed:
    model, steps, tried = plain.steps(arguments, process)
    theirs = _final(trial.reference)
    assert theirs
    distances = {
        name: float((weight.detach() - theirs.full_tensor(name)).norm())
        for name, weight in named_weights(model).items()
        if name in theirs.slices
    }
    return {**_numbers(steps), "distances": distances, "properties": tried}


def _numbers(steps: list[Step]) -> Observed:
    """Return the numbers of every step, and the gradient norms of single weights in the first."""
    of_weights = (item for step in steps[:1] for item in step.reports.items())
    return {
        "losses": [step.loss for step in steps],
        "rates": [step.lr for step in steps],
        "norms": [step.grad_norm for step in steps],
        "skipped": [step.iteration for step in steps if step.skipped],
        "gradients": {name.removeprefix(GRADIENTS): value for name, value in of_weights if name.startswith(GRADIENTS)},
    }


def _held(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return copies of what this rank holds of each weight."""
    # ZeRO-3 keeps a flat part of each weight, and an empty tensor in its place.
    weights = named_weights(module).items()
    return {name: getattr(weight, "ds_tensor", weight).detach().float().clone() for name, weight in weights}


def _movements(before: dict[str, Tensor], module: torch.nn.Module) -> dict[str, list[float]]:
    """Return how far each weight moved: name -> 2-norm over what all ranks hold, and its number of elements."""
    weights, after = named_weights(module), _held(module)
    here = {
        name: (float((after[name] - old).square().sum()), torch.Size(unsharded_shape(weights[name])).numel())
        for name, old in before.items()
    }
    total: dict[str, list[float]] = {}
    for part in of_all_ranks(here):
        for name, (square, size) in part.items():
            total[name] = [total.get(name, [0.0])[0] + square, size]
    return {name: [square**0.5, size] for name, (square, size) in total.items()}


def _unequal_replicas(module: torch.nn.Module) -> list[str]:
    """Return the weights of which ranks that hold the same part hold different numbers. Collective."""
    here = {
        f"{name} {shards_of(weight)}": hashlib.sha1(weight.detach().float().numpy().tobytes()).hexdigest()
        for name, weight in named_weights(module).items()
        if not hasattr(weight, "ds_tensor")  # of ZeRO-3, where every rank holds another part
    }
    first: dict[str, str] = {}
    parts = [item for part in of_all_ranks(here) for item in part.items()]
    return sorted({key.partition(" ")[0] for key, digest in parts if first.setdefault(key, digest) != digest})


def _written(config: Config) -> Observed:
    """Return the files in the run's folder; numbers of processes and times are left out of their names."""
    folder = Path(config.logging.run_dir)
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {"files": sorted(re.sub(r"\d{6,}.*", "*", name) for name in names)}


def _compared(config: Config, reference: str) -> Observed:
    """Return the digest of the final weights, and their distances from those of the reference."""
    ours, theirs = _final(config.checkpoint.save), _final(reference)
    if ours is None:
        return {"digest": None, "distances": {}}
    digest, distances = hashlib.sha1(), dict[str, float]()
    for name in sorted(ours.slices):
        weight = ours.full_tensor(name, master=True).float()
        digest.update(f"{name} {tuple(weight.shape)}".encode() + weight.contiguous().numpy().tobytes())
        if theirs is not None and name in theirs.slices:
            other = theirs.full_tensor(name, master=True).float()
            # The rows that both have: a vocabulary may be padded differently.
            common = tuple(slice(min(sizes)) for sizes in zip(weight.shape, other.shape, strict=True))
            distances[name] = float((weight[common] - other[common]).norm())
    return {"digest": digest.hexdigest(), "distances": distances}


def _final(folder: str | None) -> SavedWeights | None:
    newest = checkpoint_folder.newest(Path(folder)) if folder else None
    return SavedWeights(newest, inventory.read(newest)) if newest else None
