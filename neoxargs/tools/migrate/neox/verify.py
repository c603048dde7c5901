"""Whether files resolve to the same configuration before and after, on a number of GPUs that they fit on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from neoxargs.problems import Place, Problem, Problems
from neoxargs.registry import REGISTRY
from neoxargs.resolve import Config, Draft
from neoxargs.resolve.derive import Unresolved, complete
from neoxargs.sizes.layout import ranks_of_replica
from neoxargs.tools.migrate.neox.rewrites import rows


def known(drafted: Draft, gpus: int) -> tuple[Config, list[Problem]]:
    """What the files resolve to, or what of it is certain, with the errors."""
    try:
        return complete(drafted, gpus), []
    except Unresolved as stop:
        return stop.certain, [problem for problem in stop.problems if problem.severity == "error"]


def fitting(drafted: Draft) -> int:
    """A number of GPUs that the files fit on, if one is found."""
    values = {name: value.value for name, value in drafted.values.items()}
    copy = ranks_of_replica(values.get("model_parallel_size", 1), values.get("pipe_parallel_size", 0))
    if drafted.problems:  # it will be refused
        return copy
    tried: list[int] = [
        values.get("global_num_gpus", copy),
        *(copy * count for count in (1, 8, 2, 4, 12, 16, 32, 64, 128)),
    ]
    return next((gpus for gpus in tried if not too_few(known(drafted, gpus)[1])), tried[0])


def too_few(errors: Sequence[Problem]) -> bool:
    """Is something wrong that another number of GPUs could mend?"""
    return any("ranks" in error.what or "GPU" in error.what for error in errors)


def differences(before: Config, after: Config) -> Iterator[tuple[str, Any, Any]]:
    """Every parameter in which two configurations differ, retired names apart."""
    retired = {*rows(), "dialect"} - {"precision"}
    for name in REGISTRY.parameters:
        if name not in retired and before.get(name) != after.get(name):
            yield name, before.get(name), after.get(name)


def verify(before: Draft, after: Draft, gpus: int, whole: Place) -> None:
    """Raise Problems if the new files resolve to anything else; whole: where their own mistakes are told."""
    was, errors = known(before, gpus)
    becomes, new_errors = known(after, gpus)
    if new_errors and not errors:
        raise Problems([Problem(f"after migrating: {error.what}", whole, error.hint) for error in new_errors])
    if found := list(differences(was, becomes)):
        raise Problems([_would_change(was.place(name), name, *both) for name, *both in found])


def _would_change(where: Place | None, name: str, before: Any, after: Any) -> Problem:
    what = f"this cannot be migrated: {name} would change from {before!r} to {after!r}"
    return Problem(what, where, "take the retired names out by hand")
