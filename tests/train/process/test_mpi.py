"""Ranks that MPI starts: their numbers by every launcher's names, and a whole run under a real mpirun."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.problems import Problems
from neoxargs.config.config import Config
from neoxargs.config.value import DEFAULT, Value
from neoxargs.processes.process_tree import session_members
from neoxargs.train.process import mpi
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes import TINY, write_tokens

HERE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


def config(**values: Any) -> Config:
    return Config({name: Value(value, DEFAULT) for name, value in values.items()})


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An empty environment, for this test only."""
    found: dict[str, str] = {}
    monkeypatch.setattr("neoxargs.train.process.mpi.os.environ", found)
    return found


@pytest.mark.parametrize(
    ("switch", "names", "numbers"),
    [("deepspeed_mpi", mpi.MPI[0], "1 2 1 2"), ("deepspeed_mpi", mpi.MPI[1], "1 2 1 2"),
     ("deepspeed_mpi", mpi.MPI[2], "1 2 1 2"), ("deepspeed_slurm", mpi.SLURM[0], "1 2 1 2")],
)  # fmt: skip
def test_each_launchers_names_are_understood(
    environ: dict[str, str], switch: str, names: mpi.Names, numbers: str
) -> None:
    environ |= dict(zip(names, numbers.split(), strict=True))
    before = dict(environ)
    mpi.set_rank_environment(config(**{switch: True, "master_port": 1234}))
    assert {name: environ[name] for name in HERE} == HERE
    assert environ["MASTER_PORT"] == "1234"
    environ.clear()
    environ |= before
    mpi.set_rank_environment(config())  # although nobody says so, they are ranks, unless they are only inside of a job
    assert ("RANK" in environ) == (switch == "deepspeed_mpi")
    environ |= {"SLURM_STEP_ID": "0"}
    mpi.set_rank_environment(config())
    assert {name: environ[name] for name in HERE} == HERE


def test_several_machines_need_a_rendezvous_address(environ: dict[str, str]) -> None:
    environ |= dict(zip(mpi.SLURM[0], ("5", "8", "1", "4(x2)"), strict=True))
    with pytest.raises(Problems, match="the rendezvous address is not set"):
        mpi.set_rank_environment(config(deepspeed_slurm=True))
    mpi.set_rank_environment(config(deepspeed_slurm=True, master_addr="node1"))
    assert (environ["MASTER_ADDR"], environ["LOCAL_SIZE"], environ["RANK"]) == ("node1", "4", "5")


def test_without_mpirun_it_says_so(environ: dict[str, str]) -> None:
    with pytest.raises(Problems, match=r"deepspeed_mpi is true, but this process was not started by mpirun"):
        mpi.set_rank_environment(config(deepspeed_mpi=True))
    environ["RANK"] = "0"  # DeepSpeed's launcher has
    mpi.set_rank_environment(config(deepspeed_mpi=True))


needs_mpirun = pytest.mark.skipif(
    not (shutil.which("mpirun") and shutil.which("ompi_info")), reason="Open MPI's mpirun is not installed"
)


@needs_mpirun
@pytest.mark.cluster
@pytest.mark.shows("deepspeed_mpi")
@pytest.mark.timeout(600)
def test_a_run_with_mpirun_and_no_orphans_after_deepy_is_killed(tmp_path: Path) -> None:
    with _deepy(tmp_path, save=str(tmp_path / "ckpt"), exit_interval=20, train_iters=100_000) as run:
        output, _ = run.communicate(timeout=280)
    assert run.returncode == 0, output
    assert (tmp_path / "ckpt" / "global_step20" / "random-rank00001.pt").exists()
    with _deepy(tmp_path, train_iters=100_000, run_dir=str(tmp_path / "killed")) as killed:
        _wait(lambda: (tmp_path / "killed" / "metrics.jsonl").exists())
        launcher = [int(pid) for pid in _children(killed.pid)]
        started = [_words(process.pid) for pid in launcher for process in session_members(pid)]
    assert sum(words.startswith("mpirun") for words in started) == 1
    assert sum("mpirun" not in words and "launcher" not in words and "train.py" in words for words in started) >= 2
    _wait(lambda: not any(session_members(pid) for pid in launcher))


@contextmanager
def _deepy(folder: Path, **changes: Any) -> Iterator[subprocess.Popen[str]]:
    """`deepy.py train.py` on two ranks of this machine, killed at the end of the block."""
    (folder / "hosts").write_text("localhost slots=2\n")
    values = {
        **TINY, "run_dir": str(folder / "out"), "data_path": str(write_tokens(folder)), "deepspeed_mpi": True,
        "hostfile": str(folder / "hosts"), "no_ssh_check": True, "master_addr": "127.0.0.1", "master_port": free_port(),
        "launcher_args": "--allow-run-as-root --oversubscribe --mca btl_tcp_if_include lo", **changes,
    }  # fmt: skip
    if "save" not in changes:
        del values["checkpoint_factor"]
    (folder / "run.yml").write_text(json.dumps(values))
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    words = [sys.executable, str(ROOT / "deepy.py"), "train.py", str(folder / "run.yml")]
    process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _wait(condition: Any, seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)
