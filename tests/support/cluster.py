"""Clusters on one machine: an sshd that stands for two hosts, and a Slurm of one node.

Each runs from a temporary folder with its own keys and ports, and does not use the configuration of this machine. All
its processes end with the context manager.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes import TINY, wait_until, write_tokens

HOSTS = ("127.0.0.1", "127.0.0.2")
#: Runs a command in a namespace of processes with a host name of its own; all of them end with it.
APART = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
         'hostname worker-1 && exec "$@"', "sh"]  # fmt: skip
Environ = dict[str, str]


def require_programs(*programs: str) -> None:
    """Skip the test with a reason if a program is missing or this user may not start daemons."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    missing = [program for program in programs if not shutil.which(program, path=path)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if os.getuid():
        pytest.skip("only root can start the daemons of a cluster")


@contextmanager
def two_hosts(folder: Path, apart: bool = False) -> Iterator[Environ]:
    """Yield an environment in which `ssh` reaches 127.0.0.1 and 127.0.0.2.

    apart: the second host has a name and process numbers of its own, and does not see the processes of the first.
    """
    require_programs("sshd", "ssh", "ssh-keygen")
    port, alone = free_port(), APART if apart else []
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("this user may not create namespaces")
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    (folder / "sshd_config").write_text(
        f"Port {port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nPidFile none\n"
        "UsePAM no\nStrictModes no\nPasswordAuthentication no\nMaxStartups 100\n"
        # bash then skips ~/.bashrc, which may print, take seconds, or wait for another login
        "SetEnv SHLVL=2\n"
    )
    (folder / "ssh_config").write_text(
        f"Host *\n  Port {port}\n  IdentityFile {folder}/user\n  StrictHostKeyChecking no\n"
        "  UserKnownHostsFile /dev/null\n  BatchMode yes\n  LogLevel ERROR\n"
    )
    (folder / "bin").mkdir()
    (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    (folder / "bin" / "ssh").chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    environ = {**cpu_environ(), "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    sshd = [_program("sshd"), "-D", "-e", "-f", str(folder / "sshd_config"), "-o"]
    first, second = (f"ListenAddress={host}" for host in HOSTS)
    with (
        daemon([*sshd, first], folder / "sshd.log"),
        daemon([*alone, *sshd, second], folder / "second.log"),
    ):
        _wait_or_skip(lambda: all(_answers(host, environ) for host in HOSTS), "sshd answers", folder / "sshd.log")
        yield environ


@contextmanager
def slurm(folder: Path) -> Iterator[Environ]:
    """Yield an environment in which `srun` starts tasks on a Slurm of one node."""
    require_programs("slurmctld", "slurmd", "munged", "srun")
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
AuthInfo=socket={folder}/munge/socket,cred_expire=5
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
    environ = {**cpu_environ(), "SLURM_CONF": f"{folder}/slurm.conf"}
    files = {"socket": "munge/socket", "key-file": "key", "pid-file": "munge/pid", "log-file": "munge/log",
             "seed-file": "munge/seed"}  # fmt: skip
    munged = [_program("munged"), "-F", "--force", *(f"--{name}={folder}/{file}" for name, file in files.items())]
    with (
        daemon(munged, folder / "munged.log"),
        daemon([_program("slurmctld"), "-D", "-c"], folder / "slurmctld.log", environ),
        daemon([_program("slurmd"), "-D"], folder / "slurmd.log", environ),
    ):
        _wait_or_skip(
            lambda: "idle" in _output_of(["sinfo", "--noheader"], environ), "Slurm works", folder / "slurmctld.log"
        )
        try:
            yield environ
        finally:  # slurmstepd and its tasks are not children of slurmd
            variable = f"SLURM_CONF={folder}/slurm.conf".encode()
            for pid in _processes_with(variable, besides=("slurmctld", "slurmd")):
                kill(pid)


@contextmanager
def daemon(words: list[str], log: Path, environ: Environ | None = None) -> Iterator[None]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, env=environ, stdout=file, stderr=file, start_new_session=True, preexec_fn=_die_with_parent
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # not SIGTERM: Slurm's daemons would take 10 s to save their state
            process.wait()


def _die_with_parent() -> None:
    """Have this process killed when the tests end, even if they are killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _processes_with(variable: bytes, besides: tuple[str, ...]) -> list[int]:
    """Return the processes with this variable in their environment, except programs of these names."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            excluded = (path / "comm").read_text(errors="replace").strip() in besides
            if not excluded and variable in (path / "environ").read_bytes().split(b"\0"):
                pids.append(int(path.name))
    return pids


def cpu_environ() -> Environ:
    """Return this environment for runs on CPUs with one thread per rank."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}


def run_training(folder: Path, environ: Environ, *words: str, seconds: float = 150, **changes: Any) -> Any:
    """Run `deepy.py train.py` of the smallest model to its end; afterwards none of its processes is left."""
    with start_training(folder, environ, *words, **changes) as process:
        output, _ = process.communicate(timeout=seconds)
    return subprocess.CompletedProcess(process.args, process.returncode, output)


def write_run(folder: Path, **changes: Any) -> None:
    """Write the smallest run with these changes as `run.yml`, without keys whose value is None."""
    values = {**TINY, "data_path": str(write_tokens(folder)), "run_dir": str(folder / "out"), "train_iters": 4,
              "master_addr": "127.0.0.1", "master_port": free_port(), "checkpoint_factor": None, **changes}  # fmt: skip
    (folder / "run.yml").write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


@contextmanager
def start_training(
    folder: Path, environ: Environ, *words: str, through: Sequence[str] = (), **changes: Any
) -> Iterator[subprocess.Popen[str]]:
    """Start `deepy.py train.py` of the smallest model; at the end of the block, all its processes are killed.

    through: the first words of the command, of a program that runs another.
    """
    write_run(folder, **changes)
    command = [*through, sys.executable, str(ROOT / "deepy.py"), "train.py", str(folder / "run.yml"), *words]
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=_die_with_parent,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        for pid in ranks(folder):
            kill(pid)


def ranks(folder: Path, number: int | None = None) -> list[int]:
    """Return the processes of ranks that train in this folder, supervisors first. number: only of this rank."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environ = (path / "environ").read_bytes().split(b"\0")
            trains = b"train.py" in (path / "cmdline").read_bytes() and _folder_of(path) == str(folder)
            named = {f"RANK={number}".encode(), f"SLURM_PROCID={number}".encode()}
            if trains and (number is None or not named.isdisjoint(environ)):
                pids.append(int(path.name))
    return sorted(pids)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def remaining_ranks(folder: Path) -> list[int]:
    """Return the ranks that are still running after up to 15 s."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not ranks(folder), "all ranks have ended", 15)
    return ranks(folder)


def _folder_of(process: Path) -> str:
    """Return the folder of a process's run, which in tests is its working directory."""
    return os.readlink(process / "cwd")


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a small file system in memory on a new folder; skip the test where that is not allowed."""
    require_programs("mount")
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_disk(disk: Path) -> None:
    """Fill a small file system."""
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def _wait_or_skip(condition: Callable[[], Any], what: str, log: Path) -> None:
    """Wait for a daemon, or skip the test: some machines do not allow starting it."""
    try:
        wait_until(condition, what, 40)
    except (AssertionError, subprocess.TimeoutExpired):
        pytest.skip(f"no daemon ({what}): {log.read_text(errors='replace').strip()[-300:]}")


def _answers(host: str, environ: Environ) -> bool:
    return subprocess.run(["ssh", host, "true"], env=environ, capture_output=True, timeout=20).returncode == 0


def _output_of(words: list[str], environ: Environ) -> str:
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=20).stdout


def _program(name: str) -> str:
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    assert path
    return path
