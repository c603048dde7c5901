"""The address and the port at which the ranks find each other."""

from __future__ import annotations

import socket

from neoxargs.launch.cluster.hosts import Resources
from neoxargs.resolve.config import Config


def rendezvous_address(config: Config, resources: Resources) -> str:
    """The address of the first rank's machine; empty where a scheduler will choose it."""
    chosen = resources.selection.get("master_addr") or config.runner.master_addr
    return chosen or ("" if resources.scheduler_picks_hosts else next(iter(resources.hosts)))


def rendezvous_port(config: Config, resources: Resources) -> int:
    """The environment's, or `master_port`."""
    return int(resources.selection.get("master_port", config.runner.master_port))


def free_port(config: Config, resources: Resources) -> int | None:
    """A port of this machine that nobody uses, unless somebody chose one; None keeps master_port.

    Two runs that are started together would both find the default one free.
    """
    read_by_ranks = resources.remote or config.get("force_multi")  # in the configuration
    if read_by_ranks or "master_port" in resources.selection or config.written("master_port"):
        return None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
