"""The port of a local run is one that the system gives to no other program before the ranks bind it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from neoxargs.hosts import rendezvous


def test_the_port_is_below_those_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = tmp_path / "ports"
    ports.write_text("20100\t60999\n")
    monkeypatch.setattr(rendezvous, "SYSTEM_PORTS", ports)
    assert all(20000 <= rendezvous.unused_port() < 20100 for _ in range(20))
    ports.write_text("1024 60999\n")  # no port below: any that is free
    assert rendezvous.unused_port() > 1024


def test_a_port_in_use_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ports").write_text("65536\t65536\n")
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        monkeypatch.setattr(rendezvous, "FIRST_PORT", port)
        monkeypatch.setattr(rendezvous, "LAST_PORT", port + 1)
        monkeypatch.setattr(rendezvous, "SYSTEM_PORTS", tmp_path / "ports")
        assert rendezvous.unused_port() != port
