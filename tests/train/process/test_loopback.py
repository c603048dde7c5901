"""On one machine, no process of another machine can connect to a rank."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from neoxargs.train.process import loopback
from tests.support.paths import ROOT
from tests.support.ports import free_port

#: A rank that prints the addresses on which its process listens, after a collective.
RANK = """
import os, pathlib
import torch
from neoxargs.train.process import setup
process = setup.start("gloo", 1)
torch.distributed.all_reduce(torch.ones(1))
own = {os.readlink(path) for path in pathlib.Path("/proc/self/fd").iterdir() if path.is_symlink()}
for table in ("tcp", "tcp6"):
    for line in pathlib.Path("/proc/self/net", table).read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
            print(process.rank, *fields[1].split(":"))
torch.distributed.barrier()
setup.stop()
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("size", [1, 2])
def test_ranks_of_one_machine_listen_on_the_loopback_interface_only(size, address):
    port = free_port()
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
              "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)}  # fmt: skip
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC_", "GLOO_"))}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK], stdout=subprocess.PIPE, text=True,
            env={**inherited, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        output = "".join(rank.communicate(timeout=150)[0] for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
    listening = [line.split() for line in output.splitlines()]
    assert ["0", "0100007F", f"{port:04X}"] in listening
    assert {where for _, where, _ in listening} == {"0100007F"}  # 127.0.0.1, as /proc writes it


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
