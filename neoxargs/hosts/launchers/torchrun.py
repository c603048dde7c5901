"""`torchrun` without DeepSpeed's runner: one process per host, over ssh if there are several hosts."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from neoxargs.hosts.launchers.launcher import Launcher, Start
from neoxargs.hosts.launchers.ssh import over_ssh


def torchrun_command(start: Start) -> Sequence[str]:
    """Return the `torchrun` command of a run."""
    if start.remote:
        return over_ssh(start, ["env", "CUDA_VISIBLE_DEVICES=%d", *_on_one_host(start, "%n", "%c")], ())
    devices = next(iter(start.hosts.values()))
    # torchrun numbers devices from 0, so others are chosen by what CUDA sees.
    words, visible = _on_one_host(start, "0", str(len(devices))), ",".join(map(str, devices))
    return words if devices == list(range(len(devices))) else ["env", f"CUDA_VISIBLE_DEVICES={visible}", *words]


def _on_one_host(start: Start, node: str, ranks: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(start.hosts)}", f"--node-rank={node}",
            f"--nproc-per-node={ranks}", f"--master-addr={start.master_addr}", f"--master-port={start.master_port}",
            *start.arguments, *start.words[1:]]  # fmt: skip


TORCHRUN = Launcher("torchrun", program="ssh", command=torchrun_command, reads_env_files=True, by_ssh=True)
