"""Resolving files even where `deepy check` would refuse them."""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.base.problems import Problem
from neoxargs.config.config import Config
from neoxargs.facts.layout import ranks_of_replica
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


def fitting_gpus(drafted: Draft) -> int:
    """Return a number of GPUs on which the files resolve without further errors; the ranks of one replica if none."""
    values = {name: value.value for name, value in drafted.values.items()}
    sizes = ("model_parallel_size", 1), ("pipe_parallel_size", 0), ("context_parallel_size", 1)
    replica = ranks_of_replica(*(values.get(name, default) for name, default in sizes))
    if drafted.problems:  # the caller raises them
        return replica
    # Batch sizes may be divisible by some numbers of replicas only; these are common in published configurations.
    candidates: list[int] = [
        values.get("global_num_gpus", replica),
        *(replica * count for count in (1, 8, 2, 4, 12, 16, 32, 64, 128)),
    ]
    on_any = resolved(drafted, None)[1]
    return next((gpus for gpus in candidates if not beyond(resolved(drafted, gpus)[1], on_any)), candidates[0])


def beyond(errors: Sequence[Problem], others: Sequence[Problem]) -> list[Problem]:
    """Return the errors that are not among `others`, compared by id, parameters and place."""
    known = {(error.id, error.about, error.where) for error in others}
    return [error for error in errors if (error.id, error.about, error.where) not in known]
