"""One command on several hosts over ssh: what it is given, how it ends, and what is left of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import cluster

BEGIN = [sys.executable, "-m", "neoxargs.launch.command.over_ssh"]


@pytest.mark.timeout(120)
def test_ssh_passes_secrets_without_a_command_line(tmp_path: Path, hosts: cluster.Environ) -> None:
    """The command sees the key; no process's arguments do, on either side."""
    look = (
        "import os, psutil, sys; print('seen:', os.environ['WANDB_API_KEY'], os.environ['HF_TOKEN'], *sys.argv[1:]);"
        "print('in arguments:', any('hun' 'ter2' in word for process in psutil.process_iter(['cmdline'])"
        " for word in process.info['cmdline'] or []))"
    )
    (tmp_path / ".deepspeed_env").write_text("NCCL_IB_HCA=mlx5\n\nHF_TOKEN = hunter3\n")
    both = [f"--host={host}=4,5" for host in cluster.HOSTS]
    begin = [*BEGIN, *both, "--", sys.executable, "-c"]
    words = [*begin, look, "n=%n", "c=%c", "d=%d", "/data/50%data"]
    environ = hosts | {"WANDB_API_KEY": "hunter2", "PYTHONPATH": str(cluster.ROOT)}
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    # a login shell may print lines of its own
    told = sorted(line for line in done.stdout.splitlines() if "seen: " in line or "in arguments: " in line)
    fail = "import os, sys; sys.exit(3 + ('1' in sys.argv[1]) if os.getcwd() == sys.argv[2] else 1)"
    failed = subprocess.run([*begin, fail, "n=%n", str(tmp_path)], env=environ, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    assert told == [
        "127.0.0.1: in arguments: False",
        "127.0.0.1: seen: hunter2 hunter3 n=0 c=2 d=4,5 /data/50%data",
        "127.0.0.2: in arguments: False",
        "127.0.0.2: seen: hunter2 hunter3 n=1 c=2 d=4,5 /data/50%data",
    ]
    assert failed.returncode in (3, 4)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_no_process_continues_when_ssh_ends(tmp_path: Path, hosts: cluster.Environ, end: str) -> None:
    look = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    both = [f"--host={host}=0" for host in cluster.HOSTS]
    words = [*BEGIN, *both, "--", sys.executable, "-c", look]
    environ = hosts | {"PYTHONPATH": str(cluster.ROOT)}
    process = subprocess.Popen(words, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    pids = [int(process.stdout.readline().split()[-1]) for _ in cluster.HOSTS]
    getattr(process, end)()
    process.communicate(timeout=40)
    cluster.wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "both have ended", 30)


def test_an_ssh_that_fails_at_once_ends_all_with_its_code(tmp_path: Path) -> None:
    """Although more is to be written to it than fits into a pipe."""
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "ssh").chmod(0o755)
    words = [*BEGIN, "--host=w0=0", "--host=w1=0", "--", "echo", "a" * 100_000]
    environ = cluster.cpu_environ() | {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(cluster.ROOT)}
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, "")
