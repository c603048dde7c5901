"""`--check-hosts` against two addresses of this machine, and its messages about a host that lacks something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.problems import Problems
from neoxargs.checks.machine import other_hosts as check_hosts
from neoxargs.cli import main
from neoxargs.hosts.hosts import Resources
from neoxargs.runs.run_spec import RunSpec
from tests.support import cluster
from tests.support.configure import config_of
from tests.support.snapshots import pinned

LOCAL = {
    "python": "3.11.7",
    "gpus": 8,
    "packages": {"torch": "2.13.0", "deepspeed": "0.19.6", "megatron-core": "0.16.1", "neoxargs": "0.1.0"},
    "absent": [],
}


def spec(device: Any = "cuda", **values: Any) -> RunSpec:
    resources = Resources({"w0": [0, 1], "w1": [0, 1]}, device, remote=True)
    return RunSpec(config_of(**values), resources)


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The messages about w1 when its probe prints `facts`, or fails with `code` and `error`; w0 has no problems."""

    def sentences(facts: dict[str, Any] | None = None, code: int = 0, error: str = "", **other: Any) -> list[str]:
        answers = {host: subprocess.CompletedProcess([], 0, json.dumps(LOCAL), "") for host in ("w0", "w1")}
        stdout = "" if facts is None else json.dumps(LOCAL | facts)
        answers["w1"] = other["done"] if "done" in other else subprocess.CompletedProcess([], code, stdout, error)
        monkeypatch.setattr(check_hosts, "_run_on_hosts", lambda *_: answers)
        local = subprocess.CompletedProcess([], 0, json.dumps(LOCAL), "")
        monkeypatch.setattr("subprocess.run", lambda *_, **__: local)
        _, problems = check_hosts.check_hosts(spec())
        return [problem.what for problem in problems]

    return sentences


@pytest.mark.parametrize("facts", [
    {"gpus": 1}, {"gpus": 0}, {"python": "3.10.2"}, {"packages": LOCAL["packages"] | {"torch": "2.6.0"}},
    {"packages": LOCAL["packages"] | {"deepspeed": None}}, {"absent": ["/data/pile.idx"]}, {},
])  # fmt: skip
def test_what_a_host_lacks(messages, facts):
    pinned(messages(facts))


def test_a_host_that_cannot_answer(messages, monkeypatch):
    pinned(messages(code=255, error="ssh: connect to host w1 port 22: Connection refused\n"))
    pinned(messages(code=255, error="ssh: connect to host w1 port 22: Connection timed out"))
    pinned(messages(done=None))
    monkeypatch.chdir("/")
    pinned(messages(code=127, error="bash: line 1: python: No such file\n"))


def test_errors_of_ssh_may_be_in_any_encoding(tmp_path, monkeypatch):
    (tmp_path / "ssh").write_bytes(b"#!/bin/sh\nprintf 'Gr\\374sse\\n' >&2\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    made = spec()
    found = check_hosts.host_problems(made.config, made.resources)
    expected = [f"host {host} does not answer over ssh: Gr\ufffdsse" for host in ("w0", "w1")]
    assert [problem.what for problem in found] == expected


def test_hosts_that_a_job_scheduler_will_choose_cannot_be_checked():
    chosen_later = Resources({"node 0": [0]}, "cuda", scheduler_picks_hosts=True)
    with pytest.raises(Problems, match="launcher srun: the hosts cannot be checked, because the job scheduler"):
        check_hosts.check_hosts(RunSpec(config_of(launcher="srun"), chosen_later))


def test_a_package_that_no_host_has_is_missing(messages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOCAL, "packages", LOCAL["packages"] | {"torch": None, "neoxargs": None})
    pinned(messages({}))


def test_a_check_without_other_hosts_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped hostfile is not taken for a list of hosts that are all right."""
    words = ["train.py", "configs/quickstart.yml", "--check-hosts", "--set", f"hostfile={tmp_path / 'none'}"]
    assert main(words) == 0
    said = capsys.readouterr().err.splitlines()
    assert "[hostfile-missing]" in said[0] and str(tmp_path) in said[0]
    pinned(said[-1])


@pytest.mark.timeout(120)
def test_two_identical_hosts(tmp_path: Path, hosts: cluster.Environ) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 slots=2\n127.0.0.2 slots=2\n")
    cluster.write_run(tmp_path, hostfile=str(tmp_path / "hosts"), model_parallel_size=2)
    words = [sys.executable, str(cluster.ROOT / "deepy.py"), "train.py", "run.yml", "--check-hosts"]
    done = subprocess.run(words, cwd=tmp_path, env=hosts, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    head, *rows = [line.split() for line in done.stdout.splitlines()]
    assert head == ["host", "slots", "GPUs", "Python", "torch", "deepspeed", "megatron-core", "neoxargs"]
    assert [row[:2] for row in rows] == [["127.0.0.1", "2"], ["127.0.0.2", "2"]]
    assert rows[0][2:] == rows[1][2:]
    assert "-" not in rows[0][3:]
    assert done.stderr.splitlines()[-1].startswith("deepy: all 2 hosts have this machine's Python, packages and repo")
