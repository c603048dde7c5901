"""`--gpus N`: the hosts that are assumed, on which check, plan, `--emit sbatch` and the launcher's flags agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from neoxargs.base.problems import Problem
from neoxargs.base.record import replace
from neoxargs.config.config import Config
from neoxargs.hosts.hostfile import DEFAULT_HOSTFILE, Hosts
from neoxargs.hosts.hosts import Resources, assumed_resources
from neoxargs.registry.runner import Runner

#: GPUs per host that are assumed when only the number of GPUs is known.
GPUS_PER_HOST = 8


def assumed_hosts(gpus: int, per_host: int = GPUS_PER_HOST) -> Hosts:
    """Return the fewest hosts with these GPUs: as many on each if possible, else the last has the remainder."""
    count = -(-gpus // per_host)
    each = per_host if gpus % count else gpus // count
    return {f"host{index}": list(range(min(each, gpus - index * each))) for index in range(count)}


def assumed_nodes(gpus: int, runner: Runner) -> Resources:
    """Return the resources of `--gpus N`. More GPUs than a host has are those of several hosts in the hostfile."""
    hosts = assumed_hosts(gpus)
    resources = replace(assumed_resources(gpus), assumed=hosts)
    if len(hosts) < 2 or gpus % len(hosts):
        return resources
    hostfile = {} if runner.hostfile in ("", "None", None) else {"hostfile": runner.hostfile}
    # The runner's num_gpus is a number per node.
    counts = {"num_nodes": str(len(hosts)), "num_gpus": str(gpus // len(hosts))}
    return replace(resources, selection={**hostfile, **counts})


def missing_hostfile(config: Config, resources: Resources) -> Iterator[Problem]:
    """Yield a warning if the assumed nodes are not in a hostfile, without which the runner uses only one machine."""
    nodes, each = (resources.selection.get(name) for name in ("num_nodes", "num_gpus"))
    path = resources.selection.get("hostfile", DEFAULT_HOSTFILE)
    if nodes and not Path(path).exists():
        what = f"the hostfile {path} does not exist; the launcher needs it to reach the {nodes} nodes assumed for "
        what += f"--gpus {resources.gpus}"
        hint = f"create it on the machine that starts the run, with {nodes} lines such as `node1 slots={each}`"
        place = config.place("hostfile")
        yield Problem(what, place, hint, severity="warning", id="hostfile-missing", about=("hostfile",))
