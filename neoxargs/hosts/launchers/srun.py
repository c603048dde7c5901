"""`srun` without DeepSpeed's runner: one task per rank; the first rank that fails ends all."""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.hosts.launchers.launcher import Launcher, Start


def srun_command(start: Start) -> Sequence[str]:
    """Return the `srun` command of a run."""
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


SRUN = Launcher(
    "srun", program="srun", command=srun_command, needs_every_slot=True, allocates_hosts=True, always_remote=True
)
