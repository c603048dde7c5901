"""Plain `ssh`: starts DeepSpeed's launcher on each host, as pdsh does, but with no secrets on command lines.

`over_ssh.py` is the program that runs a command on several hosts; `torchrun` on several hosts uses it too.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence

from neoxargs.base.programs import OVER_SSH
from neoxargs.hosts.launchers.launcher import Launcher, Start


def ssh_command(start: Start) -> Sequence[str]:
    """Return the command that starts DeepSpeed's launcher on every host."""
    world = base64.urlsafe_b64encode(json.dumps(start.hosts).encode()).decode()
    words = [sys.executable, "-u", "-m", "deepspeed.launcher.launch", f"--world_info={world}", "--node_rank=%n",
             f"--master_addr={start.master_addr}", f"--master_port={start.master_port}",
             f"--log_level={start.log_level}", *start.words[1:]]  # fmt: skip
    return over_ssh(start, words, start.arguments)


def over_ssh(start: Start, words: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return the command that runs `words` on each host. arguments: additional arguments of `over_ssh.py`."""
    hosts = [f"--host={host}={','.join(map(str, devices))}" for host, devices in start.hosts.items()]
    return [sys.executable, "-m", OVER_SSH, *hosts, *arguments, "--", *words]


SSH = Launcher(
    "ssh", program="ssh", command=ssh_command, reads_env_files=True, by_ssh=True, always_remote=True,
    negates_signals=True,
)  # fmt: skip
