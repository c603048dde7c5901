"""This machine's ranks, started without DeepSpeed's launcher, which imports torch and DeepSpeed twice before they do.

Not a value of `launcher`: it is used on one machine if no parameter is set that only another launcher implements.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from neoxargs.launch.launchers.launcher import Launcher, Start

#: The flags of DeepSpeed's runner that this start implements, or that only concern connections to other hosts.
IMPLEMENTED = frozenset(
    ("hostfile", "include", "exclude", "num_nodes", "num_gpus", "master_addr", "master_port", "log_level", "quiet",
     "no_ssh_check", "ssh_port")
)  # fmt: skip


def local_command(start: Start) -> Sequence[str]:
    """Return the command of the program that starts the ranks of this machine."""
    [(host, devices)] = start.hosts.items()
    address = "127.0.0.1" if start.master_addr == host else start.master_addr
    return [sys.executable, "-u", "-m", "neoxargs.train.local_ranks", f"--devices={','.join(map(str, devices))}",
            f"--master_addr={address}", f"--master_port={start.master_port}", *start.words[1:]]  # fmt: skip


LOCAL = Launcher("local", command=local_command)
