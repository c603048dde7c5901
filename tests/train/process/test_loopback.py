"""On one machine, no process of another machine can connect to a rank."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from neoxargs.train.process import loopback, setup
from tests.support.ports import free_port
from tests.support.ranks import CPU, forked_from


def addresses(end: Connection, environ: dict[str, str]) -> None:
    """Send the rank's number and the addresses on which this process listens, after a collective."""
    for name in [name for name in os.environ if name.startswith(("TORCHELASTIC_", "GLOO_"))]:
        del os.environ[name]
    os.environ.update(environ)
    process = setup.start("gloo", 1)
    torch.distributed.all_reduce(torch.ones(1))
    own = {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    rows = [
        line.split() for table in ("tcp", "tcp6")
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]
    ]  # fmt: skip
    end.send([(process.rank, row[1]) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own])
    torch.distributed.barrier()
    setup.stop()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("size", [1, 2])
def test_ranks_of_one_machine_listen_on_the_loopback_interface_only(size, address):
    port = free_port()
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": str(port), **CPU.environment}
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    ranks = [
        context.Process(target=addresses, args=(sender, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}))
        for rank in range(size)
    ]
    with forked_from(CPU.preload):
        for rank in ranks:
            rank.start()
    listening = [each for _ in ranks if receiver.poll(150) for each in receiver.recv()]
    for rank in ranks:
        rank.join(20)
        rank.kill()
    assert (0, f"0100007F:{port:04X}") in listening  # 127.0.0.1, as /proc writes it
    assert {where.partition(":")[0] for _, where in listening} == {"0100007F"}


def test_other_addresses_are_reached_as_torch_does(monkeypatch):
    """And those of torchrun, whose agent has the store."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    own = dict.fromkeys(("127.0.0.1", "127.0.0.2", "localhost", "::1"), "loopback://")
    for address, method in {**own, **dict.fromkeys(("10.0.0.1", "node1", "0.0.0.0", ""))}.items():
        monkeypatch.setenv("MASTER_ADDR", address)
        assert loopback.init_method() == method, address
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert loopback.init_method() is None
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth0"  # a user's own choice
