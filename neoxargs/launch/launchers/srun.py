"""`srun` without DeepSpeed's runner: one task for each rank; the first that fails ends all."""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.launch.launchers.launcher import Launcher, Start


def srun_command(start: Start) -> Sequence[str]:
    counts = {len(devices) for devices in start.hosts.values()}
    each = max(counts)
    nodes = [] if start.scheduler_picks_hosts else [f"--nodelist={','.join(start.hosts)}"]
    gpus = [f"--gpus-per-node={each}"] if start.on_gpus else []
    spread = [f"--ntasks-per-node={each}"] if len(counts) == 1 else []
    export = f"--export=ALL,MASTER_PORT={start.master_port}"
    address = f",MASTER_ADDR={start.master_addr}" if start.master_addr else ""
    return ["srun", f"--nodes={len(start.hosts)}", f"--ntasks={start.ranks}", *spread, *gpus, *nodes,
            "--kill-on-bad-exit=1", export + address, *start.arguments,
            start.words[0], "-u", *start.words[1:]]  # fmt: skip


SRUN = Launcher(
    "srun", program="srun", command=srun_command, needs_every_slot=True, allocates_hosts=True, always_remote=True
)
