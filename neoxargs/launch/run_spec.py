"""From the command line to a configuration that knows how many ranks it has, and on which devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neoxargs.launch.cluster.hosts import Resources, pretended, resources
from neoxargs.problems import Place, Problem
from neoxargs.registry.parallel import Parallel
from neoxargs.registry.runner import Runner
from neoxargs.registry.training import Training
from neoxargs.resolve import Draft, resolve
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules.runtime import launcher
from neoxargs.sizes.layout import ranks_of_replica


@dataclass(frozen=True)
class RunSpec:
    """A complete configuration and where it runs."""

    config: Config
    resources: Resources

    @property
    def warnings(self) -> list[Problem]:
        """What is worth telling although the run can start."""
        return [*self.resources.warnings, *self.config.warnings]


def resolve_run(
    files: Sequence[str],
    overrides: Sequence[str],
    directory: str | None,
    environ: Mapping[str, str],
    gpus: int | None = None,
) -> RunSpec:
    """Read, resolve and count; raises Problems. gpus: instead of looking for hosts and devices."""
    found: list[Resources] = [] if gpus is None else [pretended(gpus)]

    def count(draft: Draft) -> int:
        if not found:
            found.append(_resources(draft, environ))
        return found[0].gpus

    config = resolve(files, overrides, directory, gpus=count)
    return RunSpec(config, found[0])


def _resources(draft: Draft, environ: Mapping[str, str]) -> Resources:
    def where(key: str) -> Place | None:
        return draft.values[key].source.where if key in draft.values else None

    runner, parallel, training = draft.group(Runner), draft.group(Parallel), draft.group(Training)
    runner.force_multi |= training.deepspeed_slurm or training.deepspeed_mpi
    if "launcher" not in draft.values and (started_by := launcher(training.deepspeed_slurm, training.deepspeed_mpi)):
        runner.launcher = started_by
    replica = ranks_of_replica(parallel.model_parallel_size, parallel.pipe_parallel_size)
    told = draft.values.get("global_num_gpus")
    return resources(runner, told.value if told else replica, environ, where)
