"""Start this machine's ranks without DeepSpeed's launcher, which would import torch and DeepSpeed twice before that.

Not a value of `launcher`: it is used on one machine if no parameter is set that only another launcher implements.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from neoxargs.base.programs import LOCAL_RANKS
from neoxargs.config.config import Config
from neoxargs.hosts.launchers import launcher_named
from neoxargs.hosts.launchers.launcher import Launcher, Start
from neoxargs.targets import deepspeed

if TYPE_CHECKING:
    from neoxargs.hosts.hosts import Resources

#: The flags of DeepSpeed's runner that this start implements, or that only concern connections to other hosts.
IMPLEMENTED = frozenset(
    ("hostfile", "include", "exclude", "num_nodes", "num_gpus", "master_addr", "master_port", "log_level", "quiet",
     "no_ssh_check", "ssh_port")
)  # fmt: skip


def local_command(start: Start) -> Sequence[str]:
    """Return the command of the program that starts the ranks of this machine."""
    [(host, devices)] = start.hosts.items()
    # As in DeepSpeed's runner, because the host's own name may not resolve.
    address = "127.0.0.1" if start.master_addr == host else start.master_addr
    return [sys.executable, "-u", "-m", LOCAL_RANKS, f"--devices={','.join(map(str, devices))}",
            f"--master_addr={address}", f"--master_port={start.master_port}", *start.words[1:]]  # fmt: skip


LOCAL = Launcher("local", command=local_command, passes_stop_on=True)


def launcher_of(config: Config, resources: Resources) -> Launcher:
    """Return what starts the ranks: the launcher that is set, or LOCAL where one machine needs none."""
    if resources.remote or len(resources.hosts) > 1 or settings_for_a_launcher(config):
        return launcher_named(config.runner.launcher)
    return LOCAL


def settings_for_a_launcher(config: Config) -> list[str]:
    """Return the parameters that are set and that LOCAL does not implement."""
    flags = [word[2:].partition("=")[0] for word in deepspeed.runner_flags(config) if word.startswith("--")]
    return [flag for flag in flags if flag not in IMPLEMENTED]
