"""Ways of starting ranks that DeepSpeed's launcher does not know; plugins add them.

    @launcher("flux")
    def flux(start):
        return ["flux", "run", f"--nodes={len(start.hosts)}", f"--ntasks={start.ranks}", *start.words]

`launcher: flux` then starts that command instead of DeepSpeed's. Each rank needs RANK, LOCAL_RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT in its environment, as `torch.distributed` does.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neoxargs.launch.cluster.hosts import Resources
from neoxargs.registry.plugins import choices
from neoxargs.resolve.config import Config


@dataclass(frozen=True)
class Start:
    """What is to be started, and where."""

    hosts: dict[str, list[int]]
    """Host -> the numbers of its devices, in rank order."""
    words: tuple[str, ...]
    """The program of one rank with its arguments, the configuration among them."""
    master_addr: str
    master_port: int
    arguments: tuple[str, ...]
    """`launcher_args`, for the program that starts the ranks."""
    remote: bool = False
    """Are there other machines than this one?"""
    on_gpus: bool = False
    anywhere: bool = False
    """Are the hosts only numbers, because a job system chooses them?"""

    @property
    def ranks(self) -> int:
        return sum(map(len, self.hosts.values()))


Launcher = Callable[[Start], Sequence[str]]
LAUNCHERS: dict[str, Launcher] = {}


def launcher(name: str) -> Callable[[Launcher], Launcher]:
    """Declare a value of `launcher` and the function that turns a start into a command."""

    def register(function: Launcher) -> Launcher:
        choices("launcher", name)
        LAUNCHERS[name] = function
        return function

    return register


def started_by_plugin(
    config: Config, resources: Resources, words: tuple[str, ...], arguments: str, port: int | None
) -> tuple[str, ...] | None:
    """The command of a plugin's launcher; None where DeepSpeed's launcher is the one."""
    starter = LAUNCHERS.get(config.runner.launcher)
    if starter is None:
        return None
    hosts = {host: list(devices) for host, devices in resources.hosts.items()}
    port = port or int(resources.selection.get("master_port", config.runner.master_port))
    start = Start(
        hosts, words, meeting_point(config, resources), port, tuple(shlex.split(arguments)), resources.remote,
        resources.device == "cuda", resources.anywhere,
    )  # fmt: skip
    return tuple(starter(start))


def meeting_point(config: Config, resources: Resources) -> str:
    """The address of the first rank's machine; empty where a job system will choose it."""
    told = resources.selection.get("master_addr") or config.runner.master_addr
    return told or ("" if resources.anywhere else next(iter(resources.hosts)))
