"""The command of each launcher that is not DeepSpeed's, word by word."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import pytest

from neoxargs.hosts.launchers import Start
from neoxargs.hosts.launchers.rows import srun_command, ssh_command, torchrun_command

TWO = {"w0": [0, 1], "w1": [0, 1]}
WORDS = (sys.executable, "train.py", "--x", "y")
SRUN = ["srun", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2"]
ENDS = ["--kill-on-bad-exit=1", "--export=ALL,MASTER_PORT=29500,MASTER_ADDR=w0"]
RUN = [sys.executable, "-m", "torch.distributed.run"]
MEET = ["--master-addr=w0", "--master-port=29500"]


def start(hosts: dict[str, list[int]], arguments: tuple[str, ...] = (), **more: Any) -> Start:
    return Start(hosts, WORDS, next(iter(hosts)), 29500, arguments, **more)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (start({"w0": [0, 1]}), [*RUN, "--nnodes=1", "--node-rank=0", "--nproc-per-node=2", *MEET]),
        (
            start({"w0": [1, 3]}, ("--max-restarts=2",)),
            ["env", "CUDA_VISIBLE_DEVICES=1,3", *RUN, "--nnodes=1", "--node-rank=0", "--nproc-per-node=2", *MEET,
             "--max-restarts=2"],
        ),
        (
            start(TWO, remote=True),
            [sys.executable, "-m", "neoxargs.launch.command.over_ssh", "--host=w0=0,1", "--host=w1=0,1", "--", "env",
             "CUDA_VISIBLE_DEVICES=%d", *RUN, "--nnodes=2", "--node-rank=%n", "--nproc-per-node=%c", *MEET],
        ),
    ],
)  # fmt: skip
def test_torchrun(given, words):
    assert torchrun_command(given) == [*words, "train.py", "--x", "y"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (start(TWO, on_gpus=True), [*SRUN, "--gpus-per-node=2", "--nodelist=w0,w1", *ENDS]),
        (start(TWO, ("--mpi=none",), scheduler_picks_hosts=True), [*SRUN, *ENDS, "--mpi=none"]),
        (start({"w0": [0], "w1": [0, 1]}), ["srun", "--nodes=2", "--ntasks=3", "--nodelist=w0,w1", *ENDS]),
    ],
)
def test_srun(given, words):
    assert srun_command(given) == [*words, sys.executable, "-u", "train.py", "--x", "y"]


def test_ssh_starts_deepspeeds_launcher_on_each_host():
    words = ssh_command(start(TWO, ("--port=2222",), remote=True))
    assert words[3:7] == ["--host=w0=0,1", "--host=w1=0,1", "--port=2222", "--"]
    parsed = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    assert json.loads(base64.urlsafe_b64decode(parsed["--world_info"])) == TWO
    assert (parsed["--node_rank"], parsed["--master_addr"], parsed["--master_port"]) == ("%n", "w0", "29500")
    assert parsed["--log_level"] == "warning"
    assert words[-3:] == ["train.py", "--x", "y"]
    assert "--log_level=debug" in ssh_command(start(TWO, remote=True, log_level="debug"))
