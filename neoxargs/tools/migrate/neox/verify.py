"""Whether files resolve to the same configuration before and after, on a number of GPUs that they fit on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from neoxargs.problems import Place, Problem, Problems
from neoxargs.registry import REGISTRY
from neoxargs.resolve import Config, Draft
from neoxargs.sizes.layout import ranks_of_replica
from neoxargs.tools.migrate.neox.rewrites import rewrites
from neoxargs.tools.migrate.resolution import resolved


def fitting_gpus(drafted: Draft) -> int:
    """A number of GPUs that the files fit on, if one is found."""
    values = {name: value.value for name, value in drafted.values.items()}
    replica = ranks_of_replica(values.get("model_parallel_size", 1), values.get("pipe_parallel_size", 0))
    if drafted.problems:  # it will be refused
        return replica
    tried: list[int] = [
        values.get("global_num_gpus", replica),
        *(replica * count for count in (1, 8, 2, 4, 12, 16, 32, 64, 128)),
    ]
    on_any = resolved(drafted, None)[1]
    return next((gpus for gpus in tried if not beyond(resolved(drafted, gpus)[1], on_any)), tried[0])


def beyond(errors: Sequence[Problem], others: Sequence[Problem]) -> list[Problem]:
    """The errors that are not among the others: of those on any number of GPUs, what another number could mend."""
    there = {_identity(error) for error in others}
    return [error for error in errors if _identity(error) not in there]


def _identity(error: Problem) -> tuple[str, tuple[str, ...], Place | None]:
    return error.id, error.about, error.where


def differences(before: Config, after: Config) -> Iterator[tuple[str, Any, Any]]:
    """Every parameter in which two configurations differ, retired names apart."""
    retired = {*rewrites(), "dialect"} - {"precision"}
    for name in REGISTRY.parameters:
        if name not in retired and before.get(name) != after.get(name):
            yield name, before.get(name), after.get(name)


def verify(before: Draft, after: Draft, gpus: int, file: Place) -> None:
    """Raise Problems if the new files resolve to anything else; file: where their own mistakes are told."""
    was, errors = resolved(before, gpus)
    becomes, new_errors = resolved(after, gpus)
    if new_errors and not errors:
        what = "this cannot be migrated: `check` would refuse what it would become"
        refused = Problem(what, file, "take the retired names out by hand", id="migrate-result-refused")
        raise Problems([refused, *(replace(error, where=file, also=()) for error in new_errors)])
    if changed := list(differences(was, becomes)):
        raise Problems([_would_change(was.place(name), name, *both) for name, *both in changed])


def _would_change(where: Place | None, name: str, before: Any, after: Any) -> Problem:
    what = f"this cannot be migrated: {name} would change from {before!r} to {after!r}"
    return Problem(what, where, "take the retired names out by hand", id="migrate-value-would-change", about=(name,))
