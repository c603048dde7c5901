"""The built-in launchers: DeepSpeed's runner with the programs that it starts, and those that do without it.

The runner starts the ranks of one host itself. It passes the variables whose names begin with one of
`environment.EXPORTED`, and the lines of `.deepspeed_env`, to other hosts on command lines.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence

from neoxargs.base.programs import OVER_SSH
from neoxargs.base.record import replace
from neoxargs.hosts.launchers.launcher import Launcher, Start


def runner_command(flags: Sequence[str], program: Sequence[str]) -> list[str]:
    """Return the command of DeepSpeed's runner. program: the script of one rank with its arguments."""
    return [sys.executable, "-m", "deepspeed.launcher.runner", *flags, *program]


def srun_command(start: Start) -> Sequence[str]:
    """Return the `srun` command of a run: one task per rank; the first rank that fails ends all."""
    counts = {len(devices) for devices in start.hosts.values()}
    per_node = max(counts)
    nodes = [] if start.scheduler_picks_hosts else [f"--nodelist={','.join(start.hosts)}"]
    gpus = [f"--gpus-per-node={per_node}"] if start.on_gpus else []
    tasks = [f"--ntasks-per-node={per_node}"] if len(counts) == 1 else []
    # ALL is srun's default, but not if --export names variables.
    export = f"--export=ALL,MASTER_PORT={start.master_port}"
    address = f",MASTER_ADDR={start.master_addr}" if start.master_addr else ""
    return ["srun", f"--nodes={len(start.hosts)}", f"--ntasks={start.ranks}", *tasks, *gpus, *nodes,
            "--kill-on-bad-exit=1", export + address, *start.arguments,
            start.words[0], "-u", *start.words[1:]]  # fmt: skip


def ssh_command(start: Start) -> Sequence[str]:
    """Return the command that starts DeepSpeed's launcher on every host, as pdsh does, but without secrets in it."""
    world = base64.urlsafe_b64encode(json.dumps(start.hosts).encode()).decode()
    words = [sys.executable, "-u", "-m", "deepspeed.launcher.launch", f"--world_info={world}", "--node_rank=%n",
             f"--master_addr={start.master_addr}", f"--master_port={start.master_port}",
             f"--log_level={start.log_level}", *start.words[1:]]  # fmt: skip
    return _over_ssh(start, words, start.arguments)


def torchrun_command(start: Start) -> Sequence[str]:
    """Return the `torchrun` command of a run: one process per host, over ssh if there are several hosts."""
    if start.remote:
        return _over_ssh(start, ["env", "CUDA_VISIBLE_DEVICES=%d", *_on_one_host(start, "%n", "%c")], ())
    devices = next(iter(start.hosts.values()))
    # torchrun numbers devices from 0, so others are chosen by what CUDA sees.
    words, visible = _on_one_host(start, "0", str(len(devices))), ",".join(map(str, devices))
    return words if devices == list(range(len(devices))) else ["env", f"CUDA_VISIBLE_DEVICES={visible}", *words]


def _over_ssh(start: Start, words: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return the command that runs `words` on each host. arguments: additional arguments of `over_ssh.py`."""
    hosts = [f"--host={host}={','.join(map(str, devices))}" for host, devices in start.hosts.items()]
    return [sys.executable, "-m", OVER_SSH, *hosts, *arguments, "--", *words]


def _on_one_host(start: Start, node: str, ranks: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(start.hosts)}", f"--node-rank={node}",
            f"--nproc-per-node={ranks}", f"--master-addr={start.master_addr}", f"--master-port={start.master_port}",
            *start.arguments, *start.words[1:]]  # fmt: skip


#: The common fields of all launchers that DeepSpeed's runner starts.
THROUGH_RUNNER = Launcher("", inherits_environment=False, reads_env_files=True, argv_visible=True)
#: DeepSpeed's default. DeepSpeed 0.19.6 does not quote the paths in the command for the remote shells.
PDSH = replace(THROUGH_RUNNER, name="pdsh", program="pdsh", by_ssh=True, quotes=False, one_word=True)
_MPIRUN = replace(THROUGH_RUNNER, program="mpirun", by_ssh=True, needs_every_slot=True, even_slots=True, mpirun=True)
IMPI = replace(_MPIRUN, name="impi")
MPICH = replace(_MPIRUN, name="mpich")
#: DeepSpeed's runner finds MVAPICH by `mpiname`, and Open MPI by `ompi_info`.
MVAPICH = replace(_MPIRUN, name="mvapich", program="mpiname")
OPENMPI = replace(_MPIRUN, name="openmpi", program="ompi_info", even_slots=False)
#: `srun` with a rank for each slot of the hostfile. `srun` passes the complete environment on, and DeepSpeed's runner
#: repeats the variables that it exports on the command line.
SLURM = replace(THROUGH_RUNNER, name="slurm", program="sinfo", inherits_environment=True, needs_every_slot=True)
SSH = Launcher("ssh", program="ssh", command=ssh_command, reads_env_files=True, by_ssh=True, always_remote=True)
TORCHRUN = Launcher("torchrun", program="ssh", command=torchrun_command, reads_env_files=True, by_ssh=True)
SRUN = Launcher(
    "srun", program="srun", command=srun_command, needs_every_slot=True, allocates_hosts=True, always_remote=True
)
BUILT_IN = (PDSH, OPENMPI, MPICH, IMPI, MVAPICH, SLURM, SSH, TORCHRUN, SRUN)
