"""Ports for what tests start."""

from __future__ import annotations

import random
import socket

#: Below the ephemeral ports (Linux: from 32,768), any of which a connection of another process may take meanwhile.
RANGE = range(10_000, 32_000)


def free_port() -> int:
    """Return a TCP port on which nothing listens."""
    while True:
        port = random.SystemRandom().choice(RANGE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
