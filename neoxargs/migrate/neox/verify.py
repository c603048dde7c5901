"""Verify that files resolve to the same configuration before and after a migration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.base.record import replace
from neoxargs.config.config import Config
from neoxargs.migrate.neox.rewrites import CAPACITY, rewrites
from neoxargs.resolve import Draft
from neoxargs.resolve.compare.differences import Difference, differences
from neoxargs.runs.lenient import resolved


def changed(before: Config, after: Config) -> Iterator[Difference]:
    """Yield each setting that a migration changes.

    Except retired names. Of those that the trainer still reads, CAPACITY, the values count.
    """
    retired = {*rewrites(), "dialect"} - {"precision", *CAPACITY}
    for each in differences(before, after, retired):
        # A retired parameter that nothing reads is removed from the file.
        if each.name not in CAPACITY or any(each.is_read):
            yield each


def verify(before: Draft, after: Draft, gpus: int, file: Place) -> None:
    """Raise Problems if the new files resolve to another configuration. file: the place of errors of the new files."""
    was, errors = resolved(before, gpus)
    becomes, new_errors = resolved(after, gpus)
    if {error.id for error in new_errors} - {error.id for error in errors}:
        what = "this file cannot be migrated: `deepy check` would reject the result"
        refused = Problem(what, file, "replace the retired names by hand", id="migrate-result-refused")
        raise Problems([refused, *(replace(error, where=file, also=()) for error in new_errors)])
    if found := list(changed(was, becomes)):
        raise Problems([_would_change(was.place(each.name), each.name, *each.values) for each in found])


def _would_change(where: Place | None, name: str, before: Any, after: Any) -> Problem:
    what = f"this file cannot be migrated: {name} would change from {before!r} to {after!r}"
    return Problem(what, where, "replace the retired names by hand", id="migrate-value-would-change", about=(name,))
