"""The launches of a run folder: a run that was resumed can have had other values before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from neoxargs.base.record import Record
from neoxargs.checks.checkpoint.changes import recorded_config
from neoxargs.config.config import Config
from neoxargs.files import metrics
from neoxargs.registry import REGISTRY
from neoxargs.resolve.compare.apart import NOT_OF_THE_RUN, names
from neoxargs.resolve.compare.differences import Difference, differences
from neoxargs.resolve.compare.impact import IMPACTS, kind_of
from neoxargs.resolve.effects.unread import unread_by_run

#: Kinds of parameters in which the launches of a run differ in any case.
OF_A_LAUNCH = ("start",)


class Launch(Record):
    """A launch of a run."""

    steps: tuple[int, int] | None
    """Its first and its last step, from 1, without those that a later launch has repeated; None before the first."""
    config: Config

    def describe(self) -> str:
        return "before its first step" if self.steps is None else f"steps {self.steps[0]:,} to {self.steps[1]:,}"


def launches_of(folder: Path, last: Config) -> list[Launch]:
    """Return the launches of a run, without earlier ones of which no step is left; none if they are not recorded.

    last: of run.lock.yml, which a launch writes that fails before it records its values.
    """
    try:
        recorded = metrics.by_launch(folder / metrics.FILE)
        found = [(start["values"], [row["step"] for row in rows]) for start, rows in recorded]
    except (OSError, ValueError, LookupError, TypeError):
        return []
    launches = [
        Launch((steps[0], steps[-1]) if steps else None, recorded_config(values))
        for number, (values, steps) in enumerate(found, 1)
        if steps or number == len(found)
    ]
    failed = launches and launches[-1].steps and _differing(launches[-1].config, last)
    return [*launches, Launch(None, last)] if failed else launches


def other_values(launches: Sequence[Launch]) -> list[tuple[Launch, list[Difference]]]:
    """Return the earlier launches with other values than the last one that matter to training, and these."""
    found = [(launch, _differing(launch.config, launches[-1].config)) for launch in launches[:-1]]
    return [(launch, differing) for launch, differing in found if differing]


def _differing(earlier: Config, last: Config) -> list[Difference]:
    """Return the differences between two launches that matter to training."""
    found = differences(earlier, last, names(NOT_OF_THE_RUN))
    return [each for each in found if any(each.is_read) and _matters(each.name)]


def same_before(a: Sequence[Launch], b: Sequence[Launch]) -> bool:
    """Return whether the earlier launches of two runs differ from their last ones in the same way."""
    return earlier_to_json(a) == earlier_to_json(b)


def earlier_to_json(launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """Return the steps of each earlier launch with other values, and these."""
    return [
        {"steps": launch.steps, "values": {each.name: each.values[0] for each in found}}
        for launch, found in other_values(launches)
    ]


def _matters(name: str) -> bool:
    kind = kind_of(REGISTRY.parameters[name])
    return kind not in OF_A_LAUNCH and IMPACTS[kind] in ("result", "rounding")


def reads_before(launches: Sequence[Launch]) -> Callable[[str], bool]:
    """Return a function that tells whether an earlier launch has read a parameter."""
    unread = [unread_by_run(launch.config) for launch in launches[:-1]]
    return lambda name: not all(of(name) for of in unread)
