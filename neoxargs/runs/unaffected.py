"""The part of a run that the errors of its configuration do not affect, for the checks that tell further errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from neoxargs.base.problems import Problems
from neoxargs.config.certain import CertainConfig
from neoxargs.config.config import Uncertain
from neoxargs.hosts.hosts import Resources
from neoxargs.resolve.derive import Unresolved
from neoxargs.runs.epochs import samples_per_epoch
from neoxargs.runs.run_spec import RunSpec, find_hosts

T = TypeVar("T")
#: What is the same for any number of ranks in a replica.
SAME_FOR_ANY_REPLICA = ("device", "remote", "warnings", "scheduler_picks_hosts", "overrides")


def unaffected(stop: Unresolved, environ: Mapping[str, str], gpus: int | None) -> tuple[RunSpec, CertainConfig]:
    """Return a run of which a check reads only what no error affects, and its configuration.

    gpus: as in `complete_run`.
    """
    config = stop.partial.certain(stop.problems, {})
    hosts, of_hosts = _found(config, lambda: find_hosts(config, environ, gpus))
    _, of_samples = _found(config, lambda: samples_per_epoch(config))
    alike, of_alike = _found(config, lambda: find_hosts(config, environ, gpus, replica=1))
    reasons = {"gpus": of_hosts, "samples_per_epoch": of_samples}
    config = stop.partial.certain(stop.problems, {name: keys for name, keys in reasons.items() if keys})
    if hosts is None or of_hosts:
        known = {} if alike is None or of_alike else {name: getattr(alike, name) for name in SAME_FOR_ANY_REPLICA}
        hosts = cast(Resources, _UnknownHosts(known, config, of_hosts))
    return RunSpec(config, hosts), config


def _found(config: CertainConfig, find: Callable[[], T]) -> tuple[T | None, frozenset[str]]:
    """Return what is found, None if it is unknown, and the keys because of which it is uncertain."""
    config.read = set()
    try:
        found = find()
    except Problems as stop:
        return None, frozenset(name for problem in stop.problems for name in problem.about or (problem.id,))
    except Uncertain:
        return None, config.take_missed()
    return found, frozenset(config.read)


class _UnknownHosts:
    """Resources of which only a part is certain."""

    def __init__(self, known: Mapping[str, Any], config: CertainConfig, keys: frozenset[str]) -> None:
        self.known, self.config, self.keys = known, config, keys

    def __getattr__(self, name: str) -> Any:
        if name in self.known:
            return self.known[name]
        self.config.missed |= self.keys
        raise Uncertain(name)
