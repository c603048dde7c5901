"""Rendezvous of ranks on one machine: rank 0's store, and gloo, listen on the loopback interface only.

torch's own listens on every interface, and its protocol knows no password: whoever reaches the port can change what the
ranks tell each other.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.rendezvous import register_rendezvous_handler

from neoxargs.hosts.rank_env import number

INTERFACE = Path("/sys/class/net/lo")
#: The URL's scheme with which torch finds the rendezvous of this module.
SCHEME = "loopback"


def init_method() -> str | None:
    """Return the URL of this rendezvous, None if torch's own is needed: the address of rank 0 is not a loopback one.

    Not for ranks of torchrun, whose agent has opened the store already.
    """
    if not is_loopback(os.environ.get("MASTER_ADDR", "")):
        return None
    if INTERFACE.exists():  # gloo listens on the interface to which the name of the host belongs
        os.environ.setdefault("GLOO_SOCKET_IFNAME", INTERFACE.name)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    with suppress(RuntimeError):  # it is registered already
        register_rendezvous_handler(SCHEME, _rendezvous)
    return f"{SCHEME}://"


def is_loopback(host: str) -> bool:
    """Return whether a host name or an address is one that only this machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address only; raises OSError."""
    # IPv4 first: `localhost` may have an IPv6 address that the system does not support.
    found = sorted(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), key=lambda each: each[0])
    family, _, _, _, address = found[0]
    return socket.create_server(address[:2], family=family, backlog=socket.SOMAXCONN)


def _rendezvous(url: str, timeout: timedelta, **_: Any) -> Iterator[tuple[Store, int, int]]:
    rank, size, port = (number(name, os.environ) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    host = os.environ["MASTER_ADDR"]
    options: dict[str, Any] = {"timeout": timeout, "multi_tenant": True}
    if rank == 0:
        # The store closes the socket.
        options |= {"is_master": True, "master_listen_fd": listener(host, port).detach()}
    yield TCPStore(host, port, size, **options), rank, size
    raise RuntimeError("a second rendezvous with the same URL is not possible")
