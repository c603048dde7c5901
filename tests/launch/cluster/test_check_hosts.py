"""`--check-hosts` asks real machines, here two addresses of this one; and what is said of one that lacks something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neoxargs.launch.cluster import check_hosts
from neoxargs.launch.cluster.hosts import Resources
from neoxargs.launch.run_spec import RunSpec
from neoxargs.problems import Problems
from neoxargs.resolve.config import Config
from neoxargs.resolve.value import DEFAULT, Value
from tests.support import cluster

HERE = {
    "python": "3.11.7",
    "gpus": 8,
    "packages": {"torch": "2.13.0", "deepspeed": "0.19.6", "megatron-core": "0.16.1", "neoxargs": "0.1.0"},
    "absent": [],
}


def spec(device: Any = "cuda", **values: Any) -> RunSpec:
    resources = Resources({"w0": [0, 1], "w1": [0, 1]}, device, remote=True)
    return RunSpec(Config({name: Value(value, DEFAULT) for name, value in values.items()}), resources)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The sentences about w1 when it says this, or dies as this says; w0 is as it should be."""

    def sentences(facts: dict[str, Any] | None = None, code: int = 0, error: str = "", **other: Any) -> list[str]:
        answers = {host: subprocess.CompletedProcess([], 0, json.dumps(HERE), "") for host in ("w0", "w1")}
        said = "" if facts is None else json.dumps(HERE | facts)
        answers["w1"] = other["done"] if "done" in other else subprocess.CompletedProcess([], code, said, error)
        monkeypatch.setattr(check_hosts, "_ask", lambda *_: answers)
        here = subprocess.CompletedProcess([], 0, json.dumps(HERE), "")
        monkeypatch.setattr("subprocess.run", lambda *_, **__: here)
        _, problems = check_hosts.report(spec())
        return [problem.what for problem in problems]

    return sentences


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"gpus": 1}, "host w1 has 1 GPU, and slot 1 is to be used"),
        ({"gpus": 0}, "host w1 has no GPUs, and slot 1 is to be used"),
        ({"python": "3.10.2"}, "host w1 has Python 3.10.2, this machine 3.11.7"),
        ({"packages": HERE["packages"] | {"torch": "2.6.0"}}, "host w1 has torch 2.6.0, this machine 2.13.0"),
        ({"packages": HERE["packages"] | {"deepspeed": None}}, "host w1 has no deepspeed, this machine 0.19.6"),
        ({"absent": ["/data/pile.idx"]}, "host w1 has no /data/pile.idx"),
        ({}, ""),
    ],
)
def test_what_a_machine_lacks(told, facts, sentence):
    assert told(facts) == ([sentence] if sentence else [])


def test_a_machine_that_cannot_answer(told, monkeypatch):
    refused = "ssh: connect to host w1 port 22: Connection refused\n"
    assert told(code=255, error=refused) == [f"host w1 does not answer to ssh: {refused.strip()}"]
    assert told(code=255, error="ssh: connect to host w1 port 22: Connection timed out") == [
        "host w1 does not answer to ssh within 5 s"
    ]
    assert told(done=None) == ["host w1 does not answer to ssh within 5 s"]
    monkeypatch.chdir("/")
    assert told(code=127, error="bash: line 1: python: No such file\n") == [
        f"host w1 cannot run {sys.executable} in /: it says bash: line 1: python: No such file"
    ]


def test_what_ssh_says_may_be_in_any_encoding(tmp_path, monkeypatch):
    (tmp_path / "ssh").write_bytes(b"#!/bin/sh\nprintf 'Gr\\374sse\\n' >&2\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    made = spec()
    told = check_hosts.unready(made.config, made.resources)
    assert [problem.what for problem in told] == [f"host {w} does not answer to ssh: Gr\ufffdsse" for w in ("w0", "w1")]


def test_machines_that_a_job_system_will_choose_are_not_asked():
    nowhere = RunSpec(
        Config({"launcher": Value("srun", DEFAULT)}), Resources({"node 0": [0]}, "cuda", scheduler_picks_hosts=True)
    )
    with pytest.raises(Problems, match="launcher srun: which machines there will be is the job system's choice"):
        check_hosts.report(nowhere)


@pytest.mark.timeout(120)
def test_two_machines_that_are_alike(tmp_path: Path, hosts: cluster.Environ) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 slots=2\n127.0.0.2 slots=2\n")
    cluster.written(tmp_path, hostfile=str(tmp_path / "hosts"), model_parallel_size=2)
    words = [sys.executable, str(cluster.ROOT / "deepy.py"), "train.py", "run.yml", "--check-hosts"]
    done = subprocess.run(words, cwd=tmp_path, env=hosts, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    head, *rows = [line.split() for line in done.stdout.splitlines()]
    assert head == ["host", "slots", "GPUs", "Python", "torch", "deepspeed", "megatron-core", "neoxargs"]
    assert [row[:2] for row in rows] == [["127.0.0.1", "2"], ["127.0.0.2", "2"]]
    assert rows[0][2:] == rows[1][2:]
    assert "-" not in rows[0][3:]
