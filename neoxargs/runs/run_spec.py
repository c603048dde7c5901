"""Resolves a request to a configuration and the hosts and devices that it runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem
from neoxargs.base.record import Record
from neoxargs.base.request import Request
from neoxargs.config.config import Config
from neoxargs.facts.layout import ranks_of_replica
from neoxargs.hosts.assumed import assumed_nodes
from neoxargs.hosts.hosts import Resources, resources
from neoxargs.registry.parallel import Parallel
from neoxargs.registry.runner import Runner
from neoxargs.registry.training import Training
from neoxargs.resolve import Draft, read_files, resolve_texts
from neoxargs.resolve.rules.runtime import launcher
from neoxargs.runs.epochs import samples_per_epoch


class RunSpec(Record):
    """A complete configuration and the resources that it runs on."""

    config: Config
    resources: Resources
    texts: tuple[Text, ...] = ()
    """The files that the configuration was read from."""

    @property
    def warnings(self) -> list[Problem]:
        """All warnings about the resources and the configuration."""
        return [*self.resources.warnings, *self.config.warnings]


def resolve_run(request: Request, environ: Mapping[str, str]) -> RunSpec:
    """Read the files, resolve them and count the ranks; raises Problems."""
    return resolve_run_texts(read_files(request.files, request.directory), request.overrides, environ, request.gpus)


def resolve_run_texts(
    texts: Sequence[Text], overrides: Sequence[str], environ: Mapping[str, str], gpus: int | None = None
) -> RunSpec:
    """Return the same for files that have been read. gpus: replaces the search for hosts and devices."""
    located: list[Resources] = []

    # Called in the middle of resolving: the hosts need the launcher's parameters, and the batch needs the ranks.
    def count(draft: Draft) -> int:
        if not located:
            located.append(_resources(draft, environ) if gpus is None else assumed_nodes(gpus, draft.group(Runner)))
        return located[0].gpus

    config = resolve_texts(texts, overrides, gpus=count, samples=samples_per_epoch)
    return RunSpec(config, located[0], tuple(texts))


def _resources(draft: Draft, environ: Mapping[str, str]) -> Resources:
    def where(key: str) -> Place | None:
        return draft.values[key].source.where if key in draft.values else None

    runner, parallel, training = draft.group(Runner), draft.group(Parallel), draft.group(Training)
    # These two are derived later, by rules, but the hosts are needed now.
    runner.force_multi |= training.deepspeed_slurm or training.deepspeed_mpi
    if "launcher" not in draft.values and (started_by := launcher(training.deepspeed_slurm, training.deepspeed_mpi)):
        runner.launcher = started_by
    replica = ranks_of_replica(parallel.model_parallel_size, parallel.pipe_parallel_size)
    declared = draft.values.get("global_num_gpus")
    return resources(runner, declared.value if declared else replica, environ, where)
