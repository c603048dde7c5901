"""Clusters on one machine: an sshd that answers as two hosts, a Slurm of one node. Nothing outlives the block.

Each runs from a folder of its own, with its own keys and ports, and touches no configuration of this machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.processes import TINY, free_port, tokens

HOSTS = ("127.0.0.1", "127.0.0.2")
Environ = dict[str, str]


def need(*programs: str) -> None:
    """Skip, saying why, where a program is missing or may not be used."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    missing = [program for program in programs if not shutil.which(program, path=path)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if os.getuid():
        pytest.skip("daemons of a cluster are started by root")


@contextmanager
def two_hosts(folder: Path) -> Iterator[Environ]:
    """An environment in which `ssh` reaches 127.0.0.1 and 127.0.0.2."""
    need("sshd", "ssh", "ssh-keygen")
    port = free_port()
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    listens = "\n".join(f"ListenAddress {host}" for host in HOSTS)
    (folder / "sshd_config").write_text(
        f"Port {port}\n{listens}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nPidFile none\n"
        "UsePAM no\nStrictModes no\nPasswordAuthentication no\nMaxStartups 100\n"
    )
    (folder / "ssh_config").write_text(
        f"Host *\n  Port {port}\n  IdentityFile {folder}/user\n  StrictHostKeyChecking no\n"
        "  UserKnownHostsFile /dev/null\n  BatchMode yes\n  LogLevel ERROR\n"
    )
    (folder / "bin").mkdir()
    (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    (folder / "bin" / "ssh").chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    environ = {**plain(), "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    with daemon([_program("sshd"), "-D", "-e", "-f", str(folder / "sshd_config")], folder / "sshd.log"):
        _wait_or_skip(lambda: all(_answers(host, environ) for host in HOSTS), "sshd answers", folder / "sshd.log")
        yield environ


@contextmanager
def slurm(folder: Path) -> Iterator[Environ]:
    """An environment in which `srun` starts tasks on the one node of a Slurm."""
    need("slurmctld", "slurmd", "munged", "srun")
    node = os.uname().nodename
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir()
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    folder.chmod(0o755)
    (folder / "slurm.conf").write_text(f"""\
ClusterName=one
SlurmctldHost={node}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge/socket
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
KillWait=5
NodeName={node} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:4
""")
    environ = {**plain(), "SLURM_CONF": f"{folder}/slurm.conf"}
    files = {"socket": "munge/socket", "key-file": "key", "pid-file": "munge/pid", "log-file": "munge/log",
             "seed-file": "munge/seed"}  # fmt: skip
    munged = [_program("munged"), "-F", "--force", *(f"--{name}={folder}/{file}" for name, file in files.items())]
    with (
        daemon(munged, folder / "munged.log"),
        daemon([_program("slurmctld"), "-D", "-c"], folder / "slurmctld.log", environ),
        daemon([_program("slurmd"), "-D"], folder / "slurmd.log", environ),
    ):
        _wait_or_skip(
            lambda: "idle" in _said(["sinfo", "--noheader"], environ), "Slurm works", folder / "slurmctld.log"
        )
        try:
            yield environ
        finally:  # a step of a job is a daemon of its own, with what it runs
            mark = f"SLURM_CONF={folder}/slurm.conf".encode()
            for pid in _having(mark, besides=("slurmctld", "slurmd")):
                kill(pid)


@contextmanager
def daemon(words: list[str], log: Path, environ: Environ | None = None) -> Iterator[None]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, env=environ, stdout=file, stderr=file, start_new_session=True, preexec_fn=_end_with_the_tests
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # at once: Slurm's daemons take 10 s to save what nobody needs
            process.wait()


def _end_with_the_tests() -> None:
    """Also where these are killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _having(mark: bytes, besides: tuple[str, ...]) -> list[int]:
    """Processes with a variable in their environment, but for those of these names."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            named = (path / "comm").read_text(errors="replace").strip() in besides
            if not named and mark in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def plain() -> Environ:
    """This environment for runs on CPUs, without what would make a test a rank."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}


def deepy(folder: Path, environ: Environ, *words: str, seconds: float = 150, **changes: Any) -> Any:
    """`deepy.py train.py` to its end, in the smallest model; nothing of it stays."""
    with started(folder, environ, *words, **changes) as process:
        output, _ = process.communicate(timeout=seconds)
    return subprocess.CompletedProcess(process.args, process.returncode, output)


def written(folder: Path, **changes: Any) -> None:
    """The smallest run as `run.yml`; what is None is left out."""
    values = {**TINY, "data_path": str(tokens(folder)), "run_dir": str(folder / "out"), "train_iters": 4,
              "master_addr": "127.0.0.1", "master_port": free_port(), "checkpoint_factor": None, **changes}  # fmt: skip
    (folder / "run.yml").write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


@contextmanager
def started(folder: Path, environ: Environ, *words: str, **changes: Any) -> Iterator[subprocess.Popen[str]]:
    written(folder, **changes)
    command = [sys.executable, str(ROOT / "deepy.py"), "train.py", str(folder / "run.yml"), *words]
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=_end_with_the_tests,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        for pid in ranks(folder):
            kill(pid)


def ranks(folder: Path, number: int | None = None) -> list[int]:
    """The ranks that train in this folder, watchers before those they watch; number: only this rank."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environ = (path / "environ").read_bytes().split(b"\0")
            here = b"train.py" in (path / "cmdline").read_bytes() and _folder_of(path) == str(folder)
            if here and (number is None or f"RANK={number}".encode() in environ):
                found.append(int(path.name))
    return sorted(found)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def left(folder: Path) -> list[int]:
    """Ranks that are still there after a moment in which they may end."""
    with contextlib.suppress(AssertionError):
        until(lambda: not ranks(folder), "they have ended", 15)
    return ranks(folder)


def _folder_of(process: Path) -> str:
    """A run in a test has its folder as working directory."""
    return os.readlink(process / "cwd")


def fill(disk: Path) -> None:
    """Leave no space on a small file system."""
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def until(condition: Callable[[], Any], what: str, seconds: float = 60, often: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(often)


def _wait_or_skip(condition: Callable[[], Any], what: str, log: Path) -> None:
    """For daemons, which some machines do not let us start."""
    try:
        until(condition, what, 40)
    except (AssertionError, subprocess.TimeoutExpired):
        pytest.skip(f"not here: {what}: {log.read_text(errors='replace').strip()[-300:]}")


def _answers(host: str, environ: Environ) -> bool:
    return subprocess.run(["ssh", host, "true"], env=environ, capture_output=True, timeout=20).returncode == 0


def _said(words: list[str], environ: Environ) -> str:
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=20).stdout


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    assert found
    return found
