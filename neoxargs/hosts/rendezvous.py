"""The rendezvous address and port of the ranks."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from neoxargs.config.config import Config
from neoxargs.hosts.hosts import Resources

#: The ports that Linux gives to programs that name none: the first and the last.
SYSTEM_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Ports below are often those of services, and ports above those of runs that set none; of these, this many are tried.
FIRST_PORT, LAST_PORT, TRIED_PORTS = 20000, 29500, 50


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
    """Return a TCP port of this machine on which nothing listens.

    The ranks bind it seconds later. Until then, the system gives ports of its own range to other programs, so the port
    is below this range.
    """
    from random import SystemRandom  # not needed by a check

    try:
        first_of_the_system = int(SYSTEM_PORTS.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first_of_the_system = 32768  # Linux's default
    candidates = range(FIRST_PORT, min(LAST_PORT, first_of_the_system))
    tried = SystemRandom().sample(candidates, min(TRIED_PORTS, len(candidates)))
    return next(filter(None, map(_bound, [*tried, 0])))


def _bound(port: int) -> int:
    """Return a port if it can be bound, else 0. For port 0, the system chooses one."""
    import socket

    with socket.socket() as probe, suppress(OSError):
        probe.bind(("", port))
        bound: int = probe.getsockname()[1]
        return bound
    return 0
