"""Verify that files resolve to the same configuration before and after a migration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.base.record import replace
from neoxargs.config.config import Config
from neoxargs.facts.layout import ranks_of_replica
from neoxargs.migrate.neox.rewrites import CAPACITY, rewrites
from neoxargs.registry import REGISTRY
from neoxargs.resolve import Draft
from neoxargs.resolve.effects.unread import unread_by_run
from neoxargs.runs.lenient import resolved


def fitting_gpus(drafted: Draft) -> int:
    """Return a number of GPUs on which the files resolve without further errors; the ranks of one replica if none."""
    values = {name: value.value for name, value in drafted.values.items()}
    replica = ranks_of_replica(values.get("model_parallel_size", 1), values.get("pipe_parallel_size", 0))
    if drafted.problems:  # `migrate` raises them
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
    known = {_identity(error) for error in others}
    return [error for error in errors if _identity(error) not in known]


def _identity(error: Problem) -> tuple[str, tuple[str, ...], Place | None]:
    return error.id, error.about, error.where


def differences(before: Config, after: Config) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, before, after) for each parameter that differs.

    Except retired names, the dialect, and parameters that are not set and that no run reads. Of the retired names that
    the trainer still reads, the values of CAPACITY count.
    """
    retired = {*rewrites(), "dialect"} - {"precision", *CAPACITY}
    unread = [unread_by_run(before), unread_by_run(after)]
    for name in REGISTRY.parameters:  # in neither: both have the registry's default
        if name not in before.values and name not in after.values:
            continue
        if name in retired or before.get(name) == after.get(name):
            continue
        # A retired parameter that nothing reads is removed from the file.
        is_set = name not in CAPACITY and any(config.is_set(name) for config in (before, after))
        if is_set or not all(is_unread(name) for is_unread in unread):
            yield name, before.get(name), after.get(name)


def verify(before: Draft, after: Draft, gpus: int, file: Place) -> None:
    """Raise Problems if the new files resolve to another configuration. file: the place of errors of the new files."""
    was, errors = resolved(before, gpus)
    becomes, new_errors = resolved(after, gpus)
    if new_errors and not errors:
        what = "this file cannot be migrated: `deepy check` would reject the result"
        refused = Problem(what, file, "replace the retired names by hand", id="migrate-result-refused")
        raise Problems([refused, *(replace(error, where=file, also=()) for error in new_errors)])
    if changed := list(differences(was, becomes)):
        raise Problems([_would_change(was.place(name), name, *both) for name, *both in changed])


def _would_change(where: Place | None, name: str, before: Any, after: Any) -> Problem:
    what = f"this file cannot be migrated: {name} would change from {before!r} to {after!r}"
    return Problem(what, where, "replace the retired names by hand", id="migrate-value-would-change", about=(name,))
