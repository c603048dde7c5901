"""The program that starts the ranks of one machine: failures, signals, and when it may fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from neoxargs.targets.wire_format import script_arguments
from neoxargs.train import local_ranks
from tests.support.configure import configure
from tests.support.paths import ROOT
from tests.support.processes import is_running

WAIT = """
import os, pathlib, signal, sys, time
rank = os.environ["RANK"]
def stop(*_):
    with open(f"stopped{rank}", "a") as file: file.write("x")
    time.sleep(0.5)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
pathlib.Path(f"up{rank}").touch()
while rank == "0" and not os.path.exists("up1"):
    time.sleep(0.02)
"""


def started(folder: Path, script: str) -> subprocess.Popen[bytes]:
    (folder / "script.py").write_text(WAIT + script)
    options = ["--devices=0,1", "--master_addr=127.0.0.1", "--master_port=29999", "script.py", "argument"]
    words = [sys.executable, "-m", "neoxargs.train.local_ranks", *options]
    return subprocess.Popen(words, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"})


@pytest.mark.parametrize(("end", "code"), [("sys.exit(7)", 7), ("sys.exit(200)", 200), ("os.kill(os.getpid(), 9)", -9)])
def test_the_first_rank_that_fails_ends_the_others(tmp_path: Path, end: str, code: int) -> None:
    process = started(tmp_path, f"if rank == '0': {end}\ntime.sleep(60)\n")
    assert process.wait(200) == code
    assert (tmp_path / "stopped1").read_text() == "x"


STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
print("ended by itself")
"""


def test_a_rank_that_ignores_the_request_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_ranks, "AFTER_A_FAILURE", 1)
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline()
        failing = os.posix_spawn(sys.executable, [sys.executable, "-c", "exit(5)"], os.environ)
        handlers = {number: signal.getsignal(number) for number in (*local_ranks.FORWARDED, signal.SIGALRM)}
        try:
            assert local_ranks.Ranks({failing, other.pid}).wait() == 5
            assert other.stdout.read() == b""
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.alarm(0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_asks_every_rank_to_stop(tmp_path: Path, number: int) -> None:
    process = started(tmp_path, "time.sleep(60)\n")
    while len(list(tmp_path.glob("up*"))) < 2:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(200) == 0
    assert [(tmp_path / f"stopped{rank}").read_text() for rank in range(2)] == ["x", "x"]


INTERRUPTED = """
import os, signal, sys
from neoxargs.train import local_ranks
spawn = os.posix_spawn
def interrupted(*arguments, **options):
    print(pid := spawn(*arguments, **options), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    return pid
os.posix_spawn = interrupted
sys.exit(local_ranks.main(sys.argv[1:]))
"""


def test_a_signal_while_the_ranks_start_leaves_none(tmp_path: Path) -> None:
    """It arrives after the start of the first one."""
    (tmp_path / "script.py").write_text("import time; time.sleep(900)")
    options = ["--devices=0,1", "--master_addr=127.0.0.1", "--master_port=29999", "script.py"]
    words, environ = [sys.executable, "-c", INTERRUPTED, *options], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, timeout=200, check=False)
    assert done.returncode == 256 - signal.SIGTERM
    assert len(done.stdout.split()) == 2
    assert not any(map(is_running, map(int, done.stdout.split())))


@pytest.mark.parametrize(
    ("text", "device", "forks"),
    [("", "cpu", True), ("", "cuda", False), ("fork_ranks: false", "cpu", False), ("fork_ranks: true", "cuda", True)],
)  # fmt: skip
def test_ranks_are_forked_on_cpus_unless_fork_ranks_is_set(
    monkeypatch: pytest.MonkeyPatch, text: str, device: str, forks: bool
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", device)
    assert local_ranks._is_to_fork(configure(text)) is forks


@pytest.mark.slow
def test_the_imports_of_training_leave_nothing_that_prevents_a_fork() -> None:
    call = "print(local_ranks._imported_program('train.py', sys.argv[1:]))"
    code = f"import sys; from neoxargs.train import local_ranks; {call}"
    words = [sys.executable, "-c", code, *script_arguments(configure())]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | {"DS_ACCELERATOR": "cpu"}, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["train"], done.stderr


def test_a_process_with_threads_is_not_forked() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    assert "threads" in local_ranks._fork_obstacles()
    release.set()
    thread.join()
