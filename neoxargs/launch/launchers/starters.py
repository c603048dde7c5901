"""Programs that start ranks without DeepSpeed's runner: `torchrun` and `srun` directly, and plain `ssh`.

Each is a function from a `Start` to the words of a command, as a plugin's is.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence

from neoxargs.launch.launchers import Launcher, Start


def torchrun(start: Start) -> Sequence[str]:
    """One `torchrun` on each host; over ssh where there are several."""
    if start.remote:
        return _over_ssh(start, ["env", "CUDA_VISIBLE_DEVICES=%d", *_torchrun(start, "%n", "%c")], ())
    devices = next(iter(start.hosts.values()))
    here, visible = _torchrun(start, "0", str(len(devices))), ",".join(map(str, devices))
    return here if devices == list(range(len(devices))) else ["env", f"CUDA_VISIBLE_DEVICES={visible}", *here]


def _torchrun(start: Start, node: str, ranks: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(start.hosts)}", f"--node-rank={node}",
            f"--nproc-per-node={ranks}", f"--master-addr={start.master_addr}", f"--master-port={start.master_port}",
            *start.arguments, *start.words[1:]]  # fmt: skip


def srun(start: Start) -> Sequence[str]:
    """One task for each rank; the first that fails ends all."""
    counts = {len(devices) for devices in start.hosts.values()}
    each = max(counts)
    nodes = [] if start.anywhere else [f"--nodelist={','.join(start.hosts)}"]
    gpus = [f"--gpus-per-node={each}"] if start.on_gpus else []
    spread = [f"--ntasks-per-node={each}"] if len(counts) == 1 else []
    export = f"--export=ALL,MASTER_PORT={start.master_port}"
    address = f",MASTER_ADDR={start.master_addr}" if start.master_addr else ""
    return ["srun", f"--nodes={len(start.hosts)}", f"--ntasks={start.ranks}", *spread, *gpus, *nodes,
            "--kill-on-bad-exit=1", export + address, *start.arguments,
            start.words[0], "-u", *start.words[1:]]  # fmt: skip


def ssh(start: Start) -> Sequence[str]:
    """DeepSpeed's own launcher on each host, as under pdsh."""
    world = base64.urlsafe_b64encode(json.dumps(start.hosts).encode()).decode()
    words = [sys.executable, "-u", "-m", "deepspeed.launcher.launch", f"--world_info={world}", "--node_rank=%n",
             f"--master_addr={start.master_addr}", f"--master_port={start.master_port}", "--log_level=warning",
             *start.words[1:]]  # fmt: skip
    return _over_ssh(start, words, start.arguments)


def _over_ssh(start: Start, words: Sequence[str], arguments: Sequence[str]) -> list[str]:
    hosts = [f"--host={host}={','.join(map(str, devices))}" for host, devices in start.hosts.items()]
    return [sys.executable, "-m", "neoxargs.launch.launchers.ssh", *hosts, *arguments, "--", *words]


BUILT_IN: dict[str, Launcher] = {"torchrun": torchrun, "srun": srun, "ssh": ssh}
