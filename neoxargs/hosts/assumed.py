"""`--gpus N`: the nodes that are assumed, on which the plan, `--emit sbatch` and the launcher's flags agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from neoxargs.base.problems import Problem
from neoxargs.base.record import replace
from neoxargs.config.config import Config
from neoxargs.hosts.hosts import Resources, assumed_resources
from neoxargs.hosts.no_hostfile import DEFAULT_HOSTFILE

if TYPE_CHECKING:
    from neoxargs.registry.runner import Runner

#: GPUs per node that are assumed when only the number of GPUs is known.
ASSUMED_GPUS_PER_NODE = 8


def assumed_nodes(gpus: int, runner: Runner) -> Resources:
    """Return the resources of `--gpus N`. More GPUs than a node has are those of several nodes in the hostfile."""
    resources = assumed_resources(gpus)
    nodes = -(-gpus // ASSUMED_GPUS_PER_NODE)
    if nodes < 2 or gpus % nodes:
        return resources
    hostfile = {} if runner.hostfile in ("", "None", None) else {"hostfile": runner.hostfile}
    # The runner's num_gpus is a number per node.
    counts = {"num_nodes": str(nodes), "num_gpus": str(gpus // nodes)}
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
