"""The rendezvous address and port of the ranks."""

from __future__ import annotations

import socket

from neoxargs.launch.cluster.hosts import Resources
from neoxargs.resolve.config import Config


def rendezvous_address(config: Config, resources: Resources) -> str:
    """Return the address of rank 0's host; empty if a scheduler will choose the hosts."""
    chosen = resources.selection.get("master_addr") or config.runner.master_addr
    return chosen or ("" if resources.scheduler_picks_hosts else next(iter(resources.hosts)))


def rendezvous_port(config: Config, resources: Resources) -> int:
    """Return MASTER_PORT of the environment if set, otherwise `master_port`."""
    return int(resources.selection.get("master_port", config.runner.master_port))


def free_port(config: Config, resources: Resources) -> int | None:
    """Return an unused port of this machine for a local run, None if `master_port` must be used.

    Two local runs with the default port could not run at the same time.
    """
    read_by_ranks = resources.remote or config.get("force_multi")  # remote ranks read master_port from the payload
    if read_by_ranks or "master_port" in resources.selection or config.is_set("master_port"):
        return None
    return unused_port()


def unused_port() -> int:
    """Return a TCP port of this machine on which nothing listens."""
    # Port 0 lets the system choose. Another program can take the port before the ranks bind it, so ask late.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
