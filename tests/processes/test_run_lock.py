"""Of two runs that write to one folder, the second is refused; a lock whose run has ended is taken over."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.problems import Problems, render
from neoxargs.base.request import HOLDER_FILE
from neoxargs.config.config import Config
from neoxargs.launch.command.command import Command
from neoxargs.launch.start.run import start
from neoxargs.processes import run_lock
from neoxargs.processes.run_lock import Holder, RunLock, lock_run, read
from tests.support.configure import configure
from tests.support.paths import ROOT
from tests.support.refused import refused
from tests.support.snapshots import pinned

#: Holds the lock of `sys.argv[1]` until its standard input ends.
HOLDS = """
import os, sys
from neoxargs.processes.run_lock import lock_run
from tests.support.configure import configure
with lock_run(configure(f"run_dir: {sys.argv[1]}"), os.environ, print):
    print("holds", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The lock of the folder `run`."""
    return tmp_path / "run" / HOLDER_FILE


def started(folder: Path, program: str, *before: str) -> subprocess.Popen[str]:
    """Start a program with a folder as its argument. before: what executes Python."""
    words, environ = [*before, sys.executable, "-c", program, str(folder)], {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds the lock of the folder `run`."""
    with started(tmp_path / "run", HOLDS) as process:
        assert process.stdout and process.stdout.readline() == "holds\n"
        yield process
        process.kill()


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process, which then is a zombie until it is waited for."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def config(folder: Path, save: Path | None = None) -> Config:
    return configure(f"run_dir: {folder}\n" + (f"save: {save}\ncheckpoint_factor: 9\n" if save else ""))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_second_run_is_refused_before_it_writes_anything(tmp_path, other, said):
    """Whether its run_dir or its save is in use; the problem names host, process and what to do."""
    run = tmp_path / "run"
    for settings in (config(run), config(run, tmp_path / "new"), config(tmp_path / "logs", run)):
        problems = refused(lock_run, settings, os.environ, said.append)
        text = render(problems)
        assert f"({run}) is in use: the run of process {other.pid} on {os.uname().nodename} has been writing" in text
        assert f"kill {other.pid} on" in text and "--break-lock" in text
        assert problems[0].id == "run-folder-in-use"
    assert files(run) == [HOLDER_FILE]
    assert files(tmp_path) == ["run"]
    assert not said


def test_both_folders_are_locked_until_the_run_ends_also_after_an_error(tmp_path, said):
    run, save = tmp_path / "run", tmp_path / "save"
    with pytest.raises(KeyError), lock_run(config(run, save), os.environ, said.append) as lock:
        assert [read(path) for path in (run / HOLDER_FILE, save / HOLDER_FILE)] == [lock.holder] * 2
        raise KeyError
    assert files(run) == files(save) == []


def test_a_signal_while_the_lock_is_written_leaves_no_file(tmp_path, said, monkeypatch):
    def interrupted(path: Path, *_: Any, **__: Any) -> None:
        path.touch()
        raise KeyboardInterrupt

    (tmp_path / "run").mkdir()
    monkeypatch.setattr(Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock_run(config(tmp_path / "run"), os.environ, said.append)
    assert files(tmp_path / "run") == []


def test_a_signal_right_after_a_lock_is_taken_releases_it(tmp_path, said, monkeypatch):
    link = run_lock._link

    def interrupted(own: Path, target: Path) -> bool:
        link(own, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(run_lock, "_link", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock_run(config(tmp_path / "run"), os.environ, said.append)
    assert files(tmp_path / "run") == []


def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path, path, other, said):
    end(other)
    with lock_run(config(tmp_path / "run"), os.environ, said.append) as lock:
        assert read(path) == lock.holder
    other.wait()
    assert len(said) == 1
    pinned(said[0].replace(f"process {other.pid} on {os.uname().nodename}", "process OTHER"))
    assert files(tmp_path / "run") == []


def test_a_process_with_the_same_number_is_not_the_holder(tmp_path, path, other, said):
    holder = read(path)
    assert holder
    _write(path, replace(holder, started="1"))
    with lock_run(config(tmp_path / "run"), os.environ, said.append):
        assert said


def _write(path: Path, holder: Holder) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)  # a file that no process of another test holds
    path.write_text(json.dumps(asdict(holder)))


def elsewhere(path: Path, age: float = 0.0, **changes: Any) -> Holder:
    """Write the lock of a process on another host, which was touched that many seconds ago."""
    holder = replace(Holder.of_this_process({}), host="worker-7", machine="another", pid=7, **changes)
    _write(path, holder)
    now = path.stat().st_mtime
    os.utime(path, (now - age, now - age))
    return holder


@pytest.mark.parametrize("age", [0, int(run_lock.DEAD_AFTER) - 100])
def test_the_lock_of_another_host_holds_while_it_is_touched(tmp_path, path, said, age):
    elsewhere(path, age)
    with pytest.raises(Problems, match=r"process 7 on worker-7 .* was last active") as refusal:
        lock_run(config(tmp_path / "run"), os.environ, said.append)
    seconds = re.search(r"was last active (\d+) s ago", str(refusal.value))
    assert seconds and int(seconds[1]) >= age


def test_the_run_of_another_machine(tmp_path, path, said):
    """In a shared folder. The other machine is a namespace of processes with a host name of its own."""
    alone = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("this user may not create namespaces")
    named = ["sh", "-c", 'hostname worker-7 && exec "$@"', "sh"]
    with started(tmp_path / "run", HOLDS, *alone, *named) as process:
        assert process.stdout and process.stdout.readline() == "holds\n"
        with pytest.raises(Problems, match="the run of process 1 on worker-7 has been writing"):
            lock_run(config(tmp_path / "run"), os.environ, said.append)
        process.kill()
        process.wait()  # before its input is closed, at whose end it would release the lock
    with pytest.raises(Problems):  # that it has been killed cannot be seen from here
        lock_run(config(tmp_path / "run"), os.environ, said.append)
    old = path.stat().st_mtime - run_lock.DEAD_AFTER - 1
    os.utime(path, (old, old))
    with lock_run(config(tmp_path / "run"), os.environ, said.append):
        pinned(said)


@pytest.mark.parametrize("skew", [0, 7200, -7200])
def test_the_lock_of_another_host_ends_with_its_touches_whatever_the_clocks_say(
    tmp_path, path, said, skew, monkeypatch
):
    """Only times of the folder's file system are compared; this host's clock is off by two hours."""
    elsewhere(path, run_lock.DEAD_AFTER + 20)
    monkeypatch.setattr(run_lock.time, "time", lambda now=run_lock.time.time: now() + skew)
    with lock_run(config(tmp_path / "run"), os.environ, said.append):
        pinned(said[0])


@pytest.mark.parametrize(("job", "restarts", "taken"), [("5", "1", True), ("5", "0", False), ("6", "1", False)])
def test_slurm_has_ended_the_job_that_it_queues_again(tmp_path, path, said, job, restarts, taken):
    elsewhere(path, job="5")
    environ = {"SLURM_JOB_ID": job, "SLURM_RESTART_COUNT": restarts}
    if taken:
        with lock_run(config(tmp_path / "run"), environ, said.append):
            return
    with pytest.raises(Problems):
        lock_run(config(tmp_path / "run"), environ, said.append)


def test_a_broken_lock_ends_the_run_that_held_it(tmp_path, path, said, monkeypatch):
    """It notices at its next touch, and does not remove the lock of its successor."""
    monkeypatch.setattr(run_lock, "BEAT", 0.01)
    run = config(tmp_path / "run")
    with lock_run(run, os.environ, said.append) as first:
        by = elsewhere(path)
        first.ended.wait(0.0)
        while not first.lost:
            first.ended.wait(0.01)
        assert first.lost == by
    assert read(path) == by
    with lock_run(run, os.environ, said.append, break_lock=True) as second:
        assert read(path) == second.holder
    pinned(said)


#: What the supervisor of a rank does that has found the lock of another run; that run may have ended since.
NOTICES = """
import json
from pathlib import Path
from neoxargs.processes import failures
from neoxargs.processes.exit_codes import Evidence
logs, path = Path("{logs}"), Path("{folder}", "run.lock")
path.write_text(json.dumps(json.loads(path.read_text()) | dict(token="other")))
if not {there}:
    path.unlink()
failures.reserve_files(logs, 0)
failures.record_failure(logs, 0, -9, Evidence(0, killed_because="another run has taken over", lock_lost=True))
raise SystemExit(1)
"""


def test_a_rank_that_notices_a_broken_lock_first_ends_the_run_with_1_and_without_restarts(tmp_path, said):
    """Whether deepy sees the lock of the other run, or that run has ended and removed it again."""
    for there in (True, False):
        logs, folder = tmp_path / f"logs {there}", tmp_path / f"run {there}"
        logs.mkdir()
        with lock_run(config(folder), os.environ, said.append) as lock:
            words = (sys.executable, "-c", NOTICES.format(logs=str(logs), folder=str(folder), there=there))
            ended = start(Command(words, {}), os.environ, said.append, logs=logs, lock=lock)
        assert ended == (1, False, False)
    here = rf"process \d+ on {re.escape(socket.gethostname())}|on {re.escape(socket.gethostname())}\b"
    pinned([re.sub(here, "HERE", line) for line in said if "taken over" in line])


def test_a_live_lock_is_touched(tmp_path, path, said, monkeypatch):
    monkeypatch.setattr(run_lock, "BEAT", 0.01)
    with lock_run(config(tmp_path / "run"), os.environ, said.append) as lock:
        os.utime(path, (1, 1))
        while path.stat().st_mtime == 1:
            lock.ended.wait(0.01)


def test_a_folder_that_was_created_again_is_locked_again(tmp_path, path, said, monkeypatch):
    """Until the end of the run only."""
    monkeypatch.setattr(run_lock, "BEAT", 0.01)
    with lock_run(config(tmp_path / "run"), os.environ, said.append) as lock:
        path.parent.rename(tmp_path / "renamed")
        path.parent.mkdir()
        while read(path) is None:
            lock.ended.wait(0.01)
        assert read(path) == lock.holder and not lock.lost
    assert files(path.parent) == []


def test_a_lock_that_cannot_be_read_for_a_moment_is_not_lost(tmp_path, path, said, monkeypatch):
    """As when a network file system fails."""
    monkeypatch.setattr(run_lock, "BEAT", 0.01)
    with lock_run(config(tmp_path / "run"), os.environ, said.append) as lock:
        with monkeypatch.context() as patch:
            looks = list[Path]()
            patch.setattr(run_lock, "read", lambda path: looks.append(path) or run_lock.UNKNOWN)
            while len(looks) < 2:
                lock.ended.wait(0.01)
        assert not lock.lost
    assert files(path.parent) == []


def test_without_hard_links(tmp_path, path, said, other, monkeypatch):
    """As on some network and FUSE file systems."""

    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(run_lock.os, "link", refuse)
    with pytest.raises(Problems):
        lock_run(config(tmp_path / "run"), os.environ, said.append)
    end(other)
    with lock_run(config(tmp_path / "run"), os.environ, said.append) as lock:
        assert read(path) == lock.holder
    with lock_run(config(tmp_path / "new"), os.environ, said.append) as lock:
        assert read(tmp_path / "new" / HOLDER_FILE) == lock.holder


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a lock that cannot be read a tenth of the time."""
    monkeypatch.setattr(run_lock, "UNREADABLE_AFTER", run_lock.UNREADABLE_AFTER / 10)
    monkeypatch.setattr(run_lock, "TRIES", run_lock.TRIES // 10)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("text", ["", "garbage", "[]", '{"host": 1}'])
@pytest.mark.parametrize("days", [0, 1])
def test_an_unreadable_lock_that_no_process_holds_is_taken_over(tmp_path, path, said, text, days):
    """What a power failure leaves; also if the clock was a day ahead then."""
    path.parent.mkdir()
    path.write_text(text)
    later = path.stat().st_mtime + days * 86400
    os.utime(path, (later, later))
    with lock_run(config(tmp_path / "run"), os.environ, said.append) as lock:
        assert read(path) == lock.holder
    assert files(path.parent) == []


@pytest.mark.usefixtures("soon")
def test_an_unreadable_lock_that_a_process_holds_is_that_of_a_live_run(tmp_path, path, said, other):
    path.write_text("")
    with pytest.raises(Problems, match="an unknown run has been writing to this folder and was last active") as refusal:
        lock_run(config(tmp_path / "run"), os.environ, said.append)
    assert "kill" not in refusal.value.problems[0].hint  # its process is not known


@pytest.mark.usefixtures("soon")
def test_an_unreadable_lock_counts_as_a_live_one_for_a_while_without_locks_of_the_system(
    tmp_path, path, said, monkeypatch
):
    """As on some network file systems."""
    path.parent.mkdir()
    path.write_text("")
    monkeypatch.setattr(run_lock.kernel_lock, "is_held", lambda _: None)
    with pytest.raises(Problems, match="an unknown run has been writing to this folder"):
        lock_run(config(tmp_path / "run"), os.environ, said.append)
    old = path.stat().st_mtime - run_lock.DEAD_AFTER - 1
    os.utime(path, (old, old))
    with lock_run(config(tmp_path / "run"), os.environ, said.append):
        pass


def test_a_lock_of_another_host_that_is_dated_ahead_is_dead(tmp_path, path, said):
    """A live run would have touched it."""
    elsewhere(path, -86400)
    with lock_run(config(tmp_path / "run"), os.environ, said.append):
        pinned(said)


def test_a_lock_with_what_a_later_version_adds_is_read(path, other):
    holder = read(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": 1}))
    assert holder and read(path) == holder


#: Tries to take the lock over, and says whether it has it, at the moment when the parent closes standard input.
TAKES = """
import os, sys
from neoxargs.processes.run_lock import lock_run
from neoxargs.base.problems import Problems
from tests.support.configure import configure
config = configure(f"run_dir: {sys.argv[1]}")
print(flush=True)
sys.stdin.readline()
try:
    with lock_run(config, os.environ, lambda _: None):
        print("has it", flush=True)
        sys.stdin.read()
except Problems:
    print("refused", flush=True)
"""


def test_one_of_many_takes_a_dead_lock_over(tmp_path, path):
    elsewhere(path, run_lock.DEAD_AFTER + 20)
    racers = [started(tmp_path / "run", TAKES) for _ in range(5)]
    outputs = [racer.stdout for racer in racers]
    assert all(output and output.readline() for output in outputs)
    for racer in racers:
        assert racer.stdin
        racer.stdin.write("\n")
        racer.stdin.flush()
    answers = sorted(output.readline().strip() for output in outputs if output)
    for racer in racers:
        racer.communicate()
    assert answers == ["has it"] + ["refused"] * 4
    assert files(tmp_path / "run") == []


#: Finds a takeover that was killed, pauses where the parent says, then tries to take the lock over.
PAUSES = """
import os, sys
from neoxargs.base.request import HOLDER_FILE
from neoxargs.processes import run_lock
inner = run_lock._is_dead
def pausing(holder, path, *more):
    dead = inner(holder, path, *more)
    if path.name != HOLDER_FILE:
        print("found it", flush=True)
        sys.stdin.readline()
    return dead
run_lock._is_dead = pausing
""" + TAKES.replace("print(flush=True)\nsys.stdin.readline()\n", "")


@pytest.mark.timeout(120)
def test_one_of_two_that_find_the_same_killed_takeover_takes_the_lock_over(tmp_path, path):
    """Both have seen that the run that was taking the lock over is dead, before either does anything about it."""
    dead = elsewhere(path, run_lock.DEAD_AFTER + 20)
    elsewhere(path.with_name(f"{run_lock.GUARD}{dead.token}"), run_lock.DEAD_AFTER + 20)
    racers = [started(tmp_path / "run", PAUSES) for _ in range(2)]
    answers = []
    for racer in racers:
        assert racer.stdout and racer.stdout.readline() == "found it\n"
    for racer in racers:  # the second goes on when the first has the lock
        assert racer.stdin and racer.stdout
        racer.stdin.write("\n" * 9)
        racer.stdin.flush()
        answers.append(next(line for line in racer.stdout if line != "found it\n"))
    for racer in racers:
        racer.communicate()
    assert answers == ["has it\n", "refused\n"]
    assert files(tmp_path / "run") == []


def test_the_lock_of_a_program_that_this_process_has_become(tmp_path, said):
    """`srun deepy.py` takes the lock and becomes train.py, as the same process."""
    run = config(tmp_path / "run", tmp_path / "save")
    assert run_lock.inherited_lock(run) is None
    lock = lock_run(run, os.environ, said.append)
    inherited = run_lock.inherited_lock(run)
    assert inherited and inherited.holder == lock.holder
    with inherited:
        pass
    assert files(tmp_path / "run") == []


def test_other_ranks_of_a_refused_launch_end_before_they_touch_the_logs_of_the_run(tmp_path, other):
    run = config(tmp_path / "run")
    assert run_lock.held_by_another_launch(run, {}, "MASTER_PORT=2")
    assert not run_lock.held_by_another_launch(run, {}, "")
    end(other)
    assert not run_lock.held_by_another_launch(run, {}, "MASTER_PORT=2")


def test_a_folder_that_cannot_be_written_to_is_a_problem(tmp_path, said):
    (tmp_path / "file").touch()
    with pytest.raises(Problems, match=re.escape(f"run_dir ({tmp_path}/file/run): Not a directory")):
        lock_run(config(tmp_path / "file" / "run"), os.environ, said.append)


def test_a_lock_is_released_by_its_own_process_only(tmp_path, said):
    with lock_run(config(tmp_path / "run"), os.environ, said.append) as lock:
        RunLock(replace(lock.holder, pid=1), lock.paths).__exit__()  # as of a child
        assert files(tmp_path / "run") == [HOLDER_FILE]
