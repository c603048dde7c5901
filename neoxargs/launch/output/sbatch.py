"""`--emit sbatch`: write a Slurm batch script for the run. Comments in it state what had to be assumed."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from neoxargs.base.programs import LOST_RANKS
from neoxargs.base.request import Request
from neoxargs.base.shipped import IMPORT_ROOT, SHIPPED
from neoxargs.config.config import Config
from neoxargs.hosts.assumed import GPUS_PER_HOST
from neoxargs.hosts.hosts import Resources


def script(config: Config, resources: Resources, request: Request) -> str:
    """Return a batch script that starts the run of this request."""
    directory = ["-d", request.directory] if request.directory else []
    plugins = [f"--plugin={module}" for module in request.plugins]
    words = [request.script, *request.files, *directory, *plugins, *(f"--set={text}" for text in request.overrides)]
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
    yield "# Before submitting: adjust --time, and add --partition, --account or --constraint if your cluster needs it."
    yield from (f"# {sentence}" for sentence in _assumptions(resources))
    # A line break in a comment would end the directive.
    yield from (f"#SBATCH --{key}={shlex.quote(' '.join(value.split()))}" for key, value in directives.items())
    yield "# Many clusters give each task one core. To request more, remove one # from the next line and set the value"
    yield "# to cores per node / tasks per node:"
    yield "##SBATCH --cpus-per-task=8"
    yield "# Slurm sends SIGTERM two minutes before the time limit; the ranks then save a checkpoint and exit."
    # B: signals the batch shell, which becomes deepy itself for one rank; otherwise Slurm signals the tasks.
    yield f"#SBATCH --signal={'B:' if resources.gpus == 1 else ''}TERM@120"
    if extras.restarts:
        yield "# The job is requeued after a rank or a node fails, and continues from its last checkpoint."
        yield "#SBATCH --requeue"
        yield "#SBATCH --open-mode=append"


def _shape(resources: Resources) -> dict[str, str]:
    """Return the directives for nodes, tasks and GPUs; the number of tasks is the number of ranks."""
    ranks, gpu = resources.gpus, resources.device == "cuda"
    nodes = -(-ranks // GPUS_PER_HOST) if _only_count_is_known(resources) else len(resources.hosts)
    if ranks % nodes == 0 and len({len(slots) for slots in resources.hosts.values()}) == 1:
        each = str(ranks // nodes)
        return {"nodes": str(nodes), "ntasks-per-node": each} | ({"gpus-per-node": each} if gpu else {})
    return {"nodes": str(nodes), "ntasks": str(ranks)} | ({"gpus": str(ranks)} if gpu else {})


def _only_count_is_known(resources: Resources) -> bool:
    """Return whether the number of ranks is known, but not the nodes."""
    return list(resources.hosts) == ["localhost"]


def _assumptions(resources: Resources) -> Iterator[str]:
    if resources.device == "cpu":
        yield "This machine has no GPUs, so the job requests none; to request GPUs, use --gpus N."
    if _only_count_is_known(resources):
        if resources.gpus > GPUS_PER_HOST:
            yield f"The script assumes {resources.gpus} ranks on nodes with {GPUS_PER_HOST} GPUs each."
    elif not resources.scheduler_picks_hosts:
        names = ",".join(resources.hosts)
        yield f"Slurm chooses the nodes. To use those in the hostfile, add: #SBATCH --nodelist={names}"
    if "ntasks" in _shape(resources):
        yield "The nodes have different numbers of ranks, so Slurm decides how many tasks each node gets."


def _ranks(config: Config, deepy: str) -> Iterator[str]:
    runner = config.runner
    logs = shlex.quote(str(Path(config.logging.run_dir, "logs")))
    first = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    address = shlex.quote(runner.master_addr) if runner.master_addr else first
    # several jobs may share a node, and each needs a port of its own
    port = str(runner.master_port) if config.is_set("master_port") else "$((29500 + SLURM_JOB_ID % 1000))"
    yield f"export MASTER_ADDR={address} MASTER_PORT={port}"
    yield ""
    yield "# Every task is one rank and reads its rank number from the variables that srun sets."
    # Quoted word by word, so that the shell which runs the script interprets none of them.
    yield f"{shlex.join(['srun', '--kill-on-bad-exit=1', *shlex.split(runner.launcher_args)])} {deepy}"
    yield "code=$?"
    summarize = shlex.join([sys.executable, "-m", LOST_RANKS])
    summarize = f'PYTHONPATH={shlex.quote(str(IMPORT_ROOT))} {summarize} {logs}/slurm-"$SLURM_JOB_ID".*'
    if config.runner_extras.restarts:
        yield from _requeue(config.runner_extras.restarts, summarize)
    else:
        yield f"[ $code = 0 ] || {summarize}"
    yield "exit $code"


def _requeue(restarts: int, summarize: str) -> Iterator[str]:
    """Requeue the job if a rank has failed, unless the rank reported a problem, in which case `summarize` fails."""
    yield "restart=${SLURM_RESTART_COUNT:-0}"
    yield f'if [ $code != 0 ] && {summarize}"$([ $restart = 0 ] || echo -restart$restart)"'
    yield "then"
    yield f"  if [ $restart -lt {restarts} ]"
    yield "  then"
    # The wait of `restarts.wait_before`: doubled each time, 300 s at most.
    yield "    sleep $((restart < 8 ? 1 << restart : 300))"
    yield '    scontrol requeue "$SLURM_JOB_ID"'
    yield "  fi"
    yield "fi"
