"""`--emit sbatch`: the run as a script for Slurm, to be read, edited and submitted. It says what could not be known."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from neoxargs.launch.cluster.hosts import Resources
from neoxargs.request import Request
from neoxargs.resolve.config import Config
from neoxargs.shipped import IMPORT_ROOT, SHIPPED

#: GPUs of a node, where a number of GPUs is all that is known.
USUAL = 8


def script(config: Config, resources: Resources, request: Request) -> str:
    """The whole script, which starts the same as this request."""
    directory = ["-d", request.directory] if request.directory else []
    words = [request.script, *request.files, *directory, *(f"--set={text}" for text in request.overrides)]
    deepy = shlex.join([sys.executable, str(SHIPPED / "deepy.py"), *words])
    body = [f"exec {deepy}"] if resources.gpus == 1 else _ranks(config, deepy)
    head = _head(config, resources, Path(request.files[0]).stem)
    return "\n".join([*head, "", f"cd {shlex.quote(os.getcwd())} || exit 1", *body])


def _head(config: Config, resources: Resources, name: str) -> Iterator[str]:
    extras = config.runner_extras
    directives = {
        "job-name": name,
        **_shape(resources),
        "time": "24:00:00",
        "output": "slurm-%j.out",
        **{key: value for key, value in (("account", extras.account), ("comment", extras.comment)) if value},
    }
    yield "#!/bin/bash"
    yield "# Written by deepy --emit sbatch; submit it with: sbatch FILE"
    yield "# To be looked at: --time, and --partition, --account or --constraint, which differ between clusters."
    yield from (f"# {sentence}" for sentence in _unknown(resources))
    yield from (f"#SBATCH --{key}={shlex.quote(' '.join(value.split()))}" for key, value in directives.items())
    yield "# Two minutes before the time is over the ranks are asked to save and leave."
    yield f"#SBATCH --signal={'B:' if resources.gpus == 1 else ''}TERM@120"


def _shape(resources: Resources) -> dict[str, str]:
    """Nodes and ranks, as many in all as the batch is made for."""
    ranks, gpu = resources.gpus, resources.device == "cuda"
    nodes = -(-ranks // USUAL) if _is_a_number(resources) else len(resources.hosts)
    if _is_even(resources, nodes):
        each = str(ranks // nodes)
        return {"nodes": str(nodes), "ntasks-per-node": each} | ({"gpus-per-node": each} if gpu else {})
    return {"nodes": str(nodes), "ntasks": str(ranks)} | ({"gpus": str(ranks)} if gpu else {})


def _is_even(resources: Resources, nodes: int) -> bool:
    return resources.gpus % nodes == 0 and len({len(slots) for slots in resources.hosts.values()}) == 1


def _is_a_number(resources: Resources) -> bool:
    """Is it only known how many ranks there are?"""
    return list(resources.hosts) == ["localhost"]


def _unknown(resources: Resources) -> Iterator[str]:
    if resources.device == "cpu":
        yield "This machine has no GPUs, and so none are asked for; with --gpus N they are."
    if _is_a_number(resources):
        if resources.gpus > USUAL:
            yield f"Nodes of {USUAL} GPUs are assumed, because only the number of ranks is known: {resources.gpus}."
    elif not resources.scheduler_picks_hosts:
        names = ",".join(resources.hosts)
        yield f"Slurm chooses the nodes; the hostfile's own are asked for with: #SBATCH --nodelist={names}"
    if "ntasks" in _shape(resources):
        yield "The nodes do not hold equally many ranks, and Slurm decides which holds how many."


def _ranks(config: Config, deepy: str) -> Iterator[str]:
    runner = config.runner
    logs = shlex.quote(str(Path(config.logging.run_dir, "logs")))
    first = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    address = shlex.quote(runner.master_addr) if runner.master_addr else first
    # of several jobs on a node each needs its own
    port = str(runner.master_port) if config.written("master_port") else "$((29500 + SLURM_JOB_ID % 1000))"
    yield f"export MASTER_ADDR={address} MASTER_PORT={port}"
    yield ""
    yield "# Every task is a rank; each reads the configuration and finds its number in what srun tells it."
    yield f"srun --kill-on-bad-exit=1 {f'{runner.launcher_args} ' if runner.launcher_args else ''}{deepy}"
    yield "code=$?"
    tell = shlex.join([sys.executable, "-m", "neoxargs.launch.processes.failures"])
    yield f'[ $code = 0 ] || PYTHONPATH={shlex.quote(str(IMPORT_ROOT))} {tell} {logs}/slurm-"$SLURM_JOB_ID".*'
    yield "exit $code"
