"""Resolves a request to a configuration and the hosts and devices that it runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neoxargs.base.files import Text
from neoxargs.base.problems import Problem, Problems, with_note
from neoxargs.base.record import Record, replace
from neoxargs.base.request import Request
from neoxargs.config.config import Config, Uncertain
from neoxargs.facts.layout import ranks_of_replica
from neoxargs.hosts.assumed import assumed_nodes
from neoxargs.hosts.hosts import Resources, resources
from neoxargs.registry.parallel import Parallel
from neoxargs.registry.runner import Runner
from neoxargs.resolve import Draft, before_ranks, read_draft
from neoxargs.resolve.derive import Partial
from neoxargs.runs.epochs import samples_per_epoch
from neoxargs.targets.planned import Planned

#: Problems of the number of ranks.
OF_RANKS = ("batch-sizes-agree", "gpus-hold-whole-replicas")
OTHER_GPUS = "for a run on other machines, add --gpus with their number of GPUs"


class RunSpec(Record):
    """A complete configuration and the resources that it runs on."""

    config: Config
    resources: Resources
    draft: Draft | None = None
    """What the configuration was completed from."""
    assumed: Mapping[str, str] = {}
    """As of Request."""
    planned: Planned | None = None
    """Only in a launch, where the devices are known."""

    @property
    def texts(self) -> Sequence[Text]:
        """The files that the configuration was read from."""
        return self.draft.files if self.draft else ()

    @property
    def warnings(self) -> list[Problem]:
        """All warnings about the resources and the configuration."""
        return [*self.resources.warnings, *self.config.warnings]


def resolve_run(request: Request, environ: Mapping[str, str]) -> RunSpec:
    """Read the files, resolve them and count the ranks; raises Problems."""
    drafted = read_draft(request.files, request.directory, request.overrides)
    return replace(complete_run(drafted, environ, request.gpus), assumed=request.assumed)


def complete_run(drafted: Draft, environ: Mapping[str, str], gpus: int | None = None) -> RunSpec:
    """Find the hosts of a draft, count its samples and complete it; raises Problems.

    gpus: replaces the search for hosts and devices.
    """
    partial, counted = before_ranks(drafted), gpus is None
    found, samples, problems = None, None, list[Problem]()
    try:
        found = find_hosts(partial, environ, gpus)
        gpus = found.gpus
    except Problems as stop:
        problems += stop.problems
        gpus = None
    except Uncertain:  # an error is reported; a given number of GPUs is known nevertheless
        pass
    try:
        samples = samples_per_epoch(partial)
    except Problems as stop:
        problems += stop.problems
    except Uncertain:
        pass
    try:
        config = partial.complete(gpus, samples, found=problems)
    except Problems as stop:
        if counted and found and found.device == "cpu" and not found.remote:
            stop.problems = [with_note(each, OTHER_GPUS) if each.id in OF_RANKS else each for each in stop.problems]
        raise
    assert found  # without hosts, a problem was raised
    return RunSpec(config, found, drafted)


def find_hosts(
    values: Partial | Config, environ: Mapping[str, str], gpus: int | None = None, replica: int | None = None
) -> Resources:
    """Return the hosts and devices of a run; raises Problems, or Uncertain if an error makes them unknown.

    gpus: replaces the search for hosts and devices. replica: assumed as the number of ranks of a replica.
    """
    runner = values.group(Runner)
    if gpus is not None:
        return assumed_nodes(gpus, runner)
    if replica is None:
        parallel = values.group(Parallel)
        replica = ranks_of_replica(
            parallel.model_parallel_size, parallel.pipe_parallel_size, parallel.context_parallel_size
        )
        replica = parallel.global_num_gpus if values.is_set("global_num_gpus") else replica
    return resources(runner, replica, environ, values.place)
