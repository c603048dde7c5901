"""`--emit sbatch`: the run as a script for Slurm, to be read, edited and submitted."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from neoxargs.launch.command import PACKAGE_ROOT
from neoxargs.launch.hosts import Resources
from neoxargs.resolve.config import Config

#: GPUs of a node, where a number of GPUs is all that is known.
USUAL = 8


def script(config: Config, resources: Resources, words: Sequence[str], name: str) -> str:
    """The whole script. words: what deepy.py is called with; name: what the job is called."""
    return "\n".join([*_head(config, resources, name), "", *_body(config, words)])


def _head(config: Config, resources: Resources, name: str) -> Iterator[str]:
    nodes, each = _shape(resources)
    directives = {
        "job-name": name,
        "nodes": str(nodes),
        "ntasks-per-node": str(each),
        **({"gpus-per-node": str(each)} if resources.device == "cuda" else {}),
        "time": "24:00:00",
        "output": "slurm-%j.out",
        **{key: value for key, value in (("account", config.runner_extras.account),
                                         ("comment", config.runner_extras.comment)) if value},
    }  # fmt: skip
    yield "#!/bin/bash"
    yield "# Written by deepy --emit sbatch; submit it with: sbatch FILE"
    yield "# To be looked at: --time, and --partition, --account or --constraint, which differ between clusters."
    yield from (f"#SBATCH --{key}={shlex.quote(value)}" for key, value in directives.items())
    yield "# Two minutes before the time is over the ranks are asked to save and leave."
    yield "#SBATCH --signal=TERM@120"


def _body(config: Config, words: Sequence[str]) -> Iterator[str]:
    deepy = shlex.join([sys.executable, str(PACKAGE_ROOT / "deepy.py"), *words])
    logs = shlex.quote(str(Path(config.logging.run_dir, "logs")))
    address = config.runner.master_addr or '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    arguments = config.runner.launcher_args
    yield f"cd {shlex.quote(os.getcwd())} || exit 1"
    yield f"export MASTER_ADDR={address} MASTER_PORT={config.runner.master_port}"
    yield ""
    yield "# Every task is a rank; each reads the configuration and finds its number in what srun tells it."
    yield f"srun --kill-on-bad-exit=1 {arguments + ' ' if arguments else ''}{deepy}"
    yield "code=$?"
    tell = shlex.join([sys.executable, "-m", "neoxargs.launch.death"])
    root = shlex.quote(str(PACKAGE_ROOT))
    yield f'[ $code = 0 ] || PYTHONPATH={root} {tell} {logs}/slurm-"$SLURM_JOB_ID".*'
    yield "exit $code"


def _shape(resources: Resources) -> tuple[int, int]:
    """Nodes, and ranks on each."""
    sizes = [len(slots) for slots in resources.hosts.values()]
    if sizes == [resources.gpus] and resources.gpus > USUAL:
        return -(-resources.gpus // USUAL), USUAL
    return len(sizes), max(sizes)
