"""Resolving files even where `deepy check` would refuse them."""

from __future__ import annotations

from neoxargs.base.problems import Problem
from neoxargs.config.config import Config
from neoxargs.resolve import Draft
from neoxargs.resolve.derive import Unresolved, complete

#: Stands for the samples of an epoch (`train_epochs`), which are not counted: the data may be on another machine.
SAMPLES = 1 << 30


def resolved(drafted: Draft, gpus: int | None) -> tuple[Config, list[Problem]]:
    """Return the configuration and its errors. With errors, the configuration has only the values they do not affect.

    gpus: the number of GPUs of the run; None leaves it open. Raises Problems if the files cannot be read.
    """
    try:
        return complete(drafted, gpus, samples_per_epoch=SAMPLES), []
    except Unresolved as stop:
        return stop.certain, [problem for problem in stop.problems if problem.severity == "error"]
