"""A failure is recorded by the rank's supervisor, and the report starts with the root cause."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neoxargs.launch.command.command import Command
from neoxargs.launch.start import lost_ranks
from neoxargs.launch.start.run import _Run, start
from neoxargs.processes import failures
from neoxargs.processes.exit_codes import Evidence
from neoxargs.processes.failures import Cause
from tests.support import cluster
from tests.support.snapshots import pinned

#: A rank under its supervisor; what it does is the second argument.
RANK = """
import os, sys, signal, time, pathlib
from neoxargs.processes import failures, supervisor, watch
from neoxargs.processes.supervisor import run_supervised
folder, supervisor.AFTER_ANOTHER_FAILED, watch.COLLECT = pathlib.Path(sys.argv[1]), 1.0, 2.0

def run():
    print("begun", flush=True)
    try:
        exec(sys.argv[2])
    except Exception as error:
        failures.record_exception(error)
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0

sys.exit(run_supervised(run, folder))
"""


def words(folder: Path, does: str) -> list[str]:
    return [sys.executable, "-c", RANK, str(folder), does]


@contextmanager
def running(folder: Path, does: str, number: int = 0, **streams: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(words(folder, does), env={**os.environ, "RANK": str(number)}, text=True, **streams)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(folder: Path, does: str, number: int = 0) -> int:
    """The exit code of a rank that does this, which says nothing here."""
    with running(folder, does, number, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        return process.wait(200)


def until_it_says(path: Path, text: str) -> None:
    cluster.wait_until(lambda: path.exists() and text in path.read_text(), f"{path} says {text}", 200)


def killed_by(number: signal.Signals) -> str:
    return f"os.kill(os.getpid(), {number.value}); time.sleep(900)"


@pytest.mark.parametrize(
    ("does", "code", "why"),
    [
        (killed_by(signal.SIGKILL), -9, "SIGKILL: killed by a user, by a job scheduler, or because the host ran out"),
        (killed_by(signal.SIGBUS), -7, "SIGBUS: usually because /dev/shm is too small ("),
        (killed_by(signal.SIGSEGV), -11, "SIGSEGV: native code crashed"),
        (killed_by(signal.SIGUSR1), -10, "SIGUSR1"),
        ("sys.exit(7)", 7, "exit code 7"),
        ("raise ValueError('no such thing')", 1, "ValueError: no such thing (<string>:1)"),
    ],
)
def test_every_exit_code_and_signal_is_described_and_passed_on(tmp_path, does, code, why):
    assert ended(tmp_path, does) == code
    [noted] = failures.read_failures(tmp_path)
    assert noted.reason.startswith(why)
    assert (noted.rank, noted.exit_code, noted.host) == (0, code, os.uname().nodename)


@pytest.mark.parametrize("does", ["os._exit(0)", "sys.exit(0)", "raise SystemExit"])
def test_a_rank_that_exits_with_0_before_its_work_is_done_has_failed(tmp_path, does):
    """And first: the others only lose their connections to it."""
    assert ended(tmp_path, does) == 1
    assert ended(tmp_path, "raise RuntimeError('Connection closed by peer')", number=1) == 1
    first, second = failures.read_failures(tmp_path)
    assert first.rank == 0
    pinned(first.reason)
    assert (second.rank, second.cause) == (1, Cause.LOST_CONNECTION)


def test_a_rank_that_was_told_of_a_failure_is_not_its_cause(tmp_path):
    """It may end first: a full disk or a limit of rank 0's files is reported by all ranks."""
    raises = "from neoxargs.base.problems import Problem, Problems; raise {}([Problem('save: rank 0', id='x')])"
    assert ended(tmp_path, raises.format("failures.OfAnotherRank"), number=1) == 1
    assert ended(tmp_path, raises.format("Problems"), number=0) == 1
    assert [failure.rank for failure in failures.read_failures(tmp_path)] == [0, 1]
    assert failures.summarize(tmp_path)[1][0].startswith(f"rank 0 on {os.uname().nodename} failed first: save: rank 0")


@pytest.mark.parametrize("inodes", [1, 2, 3])
def test_a_disk_without_inodes_is_one_line(tmp_path, inodes):
    with cluster.mounted(tmp_path / "disk", f"nr_inodes={inodes}") as disk:
        done = subprocess.run(words(disk / "logs", ""), capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"deepy: rank 0 cannot write its log to {disk}/logs: No space left on device")
    assert "Traceback" not in done.stderr


def test_a_crash_in_native_code_names_the_python_line_in_the_log(tmp_path):
    ended(tmp_path, "import ctypes; ctypes.string_at(0)")
    assert "Segmentation fault" in failures.log_tail(tmp_path, 0)
    assert "string_at" in failures.log_tail(tmp_path, 0)


def test_a_rank_that_succeeds_has_no_record_and_keeps_its_log(tmp_path):
    assert ended(tmp_path, "print('done')", number=3) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["rank-3.log"]
    assert (tmp_path / "rank-3.log").read_text() == "begun\ndone\n"


def test_a_full_disk_has_space_for_the_record(tmp_path):
    """The last blocks are taken while the rank runs."""
    with cluster.mounted(tmp_path / "disk", "size=64k") as disk:
        write = "open(failures.current_rank.save + '/{}', 'wb', buffering=0).write(bytes({}))\n"
        does = f"failures.current_rank = failures.CurrentRank(folder, 0, {str(disk)!r})\n"
        does += write.format("filler", 65536) + write.format("more", 1)
        assert ended(disk / "logs", does) == 1
        code, said = failures.summarize(disk / "logs")
        assert code == 1
        full = f"failed first: no space left on the disk that holds {disk}; earlier checkpoints are intact; OSError: "
        assert full in said[0]


def test_output_reaches_the_console_as_before_and_the_log_too(tmp_path):
    does = "print('out'); print('err', file=sys.stderr, flush=True); os.write(1, b'native\\n')"
    with running(tmp_path, does, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.communicate(timeout=200) == ("begun\nout\nnative\n", "err\n")
    assert sorted((tmp_path / "rank-0.log").read_text().split()) == ["begun", "err", "native", "out"]


def test_lines_of_ranks_are_not_mixed_in_the_log(tmp_path, monkeypatch):
    """Although `python -u` writes them in pieces, and both streams end in one file."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    ended(tmp_path, "sys.stderr.write('er'); time.sleep(0.3); print('out'); time.sleep(0.3); sys.stderr.write('r\\n')")
    assert (tmp_path / "rank-0.log").read_text().splitlines() == ["begun", "out", "err"]


def test_a_rank_on_a_terminal_writes_to_a_terminal(tmp_path):
    import pty

    ours, theirs = pty.openpty()
    with running(tmp_path, "print(sys.stdout.isatty(), os.get_terminal_size())", stdout=theirs) as process:
        process.wait(200)
    shown = b""
    while b"True os.terminal_size" not in shown:  # a terminal may pass on what was written in several pieces
        shown += os.read(ours, 1000)


def test_out_of_memory_is_reported_with_the_peak_memory_of_the_rank(tmp_path):
    failures.record_failure(tmp_path, 2, -9, Evidence(peak_memory=12_300_000_000, memory_kills=1))
    code, lines = failures.summarize(tmp_path)
    assert code == 137
    pinned([line.replace(f"on {os.uname().nodename}", "on HOST") for line in lines])


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1", Cause.LOST_CONNECTION),
        (
            "[3] is setting up NCCL communicator: remote process exited or there was a network error",
            Cause.LOST_CONNECTION,
        ),
        ("[gloo/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete", Cause.TIMED_OUT),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE)", Cause.TIMED_OUT),
        ("mat1 and mat2 shapes cannot be multiplied", Cause.OWN_ERROR),
    ],
)
def test_consequences_of_another_failure_are_distinguished_from_a_ranks_own_error(message, cause):
    assert failures.cause_of(RuntimeError(message)) == cause


def test_the_root_cause_is_reported_first_although_it_was_recorded_last(tmp_path):
    lost = "raise RuntimeError('Connection reset by peer')"
    for number, does in enumerate([lost, lost, "raise RuntimeError('Timed out waiting 1 ms')", "raise KeyError('x')"]):
        assert ended(tmp_path, does, number) == 1
    code, (first, log, *others) = failures.summarize(tmp_path)
    assert code == 1
    assert first.startswith(f"rank 3 on {os.uname().nodename} failed first: KeyError: 'x' (")
    assert log == f"the end of {tmp_path}/rank-3.log:\n  | begun\n  | KeyError: 'x'"
    pinned(others)


def test_a_traceback_that_is_on_the_console_is_not_repeated(tmp_path, capfd):
    with running(tmp_path, "raise KeyError('x')") as process:  # its standard error is ours
        process.wait(200)
    _, where = failures.summarize(tmp_path)[1]
    pinned(where)
    assert capfd.readouterr().err == "KeyError: 'x'\n"
    failures.record_failure(tmp_path, 0, -signal.SIGSEGV, Evidence())  # the end of a crash stays
    assert failures.summarize(tmp_path)[1][1].startswith(f"the end of {tmp_path}/rank-0.log:")


def test_a_requested_stop_is_not_a_root_cause(tmp_path):
    with running(tmp_path, "time.sleep(900)", number=0, stdout=subprocess.DEVNULL) as process:
        until_it_says(tmp_path / "rank-0.log", "begun")
        process.terminate()
        assert process.wait(200) == -signal.SIGTERM
    assert json.loads((tmp_path / "rank-0.json").read_text())["cause"] == Cause.ASKED_TO_STOP


INTERRUPTED = """
fork = os.fork
def interrupted():
    pid = fork()
    if pid: os.kill(os.getpid(), signal.SIGTERM)
    return pid
os.fork = interrupted
"""


def test_a_signal_right_after_the_fork_is_passed_on(tmp_path):
    program = RANK.replace("def run()", f"{INTERRUPTED}\ndef run()")
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path), "time.sleep(900)"]) as process:
        assert process.wait(200) == -signal.SIGTERM
    assert json.loads((tmp_path / "rank-0.json").read_text())["cause"] == Cause.ASKED_TO_STOP


def test_a_rank_that_waits_for_a_failed_rank_is_killed_after_a_request_to_stop(tmp_path):
    does = "signal.signal(15, signal.SIG_IGN); print('deaf'); time.sleep(900)"
    failures.record_failure(tmp_path, 1, -9, Evidence())
    with running(tmp_path, does, stdout=subprocess.DEVNULL) as process:
        until_it_says(tmp_path / "rank-0.log", "deaf")
        process.terminate()
        assert process.wait(200) == -signal.SIGKILL
    assert [found.rank for found in failures.read_failures(tmp_path)] == [1, 0]


@pytest.mark.parametrize("end", ["kill", "close"])
def test_no_rank_outlives_its_supervisor_or_its_console(tmp_path, end):
    with running(tmp_path, "print(os.getpid()); time.sleep(900)", stdout=subprocess.PIPE) as process:
        until_it_says(tmp_path / "rank-0.log", "begun\n")
        process.stdout.readline()
        pid = int(process.stdout.readline())
        if end == "kill":
            process.kill()
        else:
            process.stdout.close()
            process.stdout = None
        assert process.wait(200) == (-signal.SIGKILL if end == "kill" else -signal.SIGTERM)
    cluster.wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the rank has ended", 200)


def test_a_rank_whose_launcher_was_killed_is_asked_to_stop(tmp_path):
    """By its watcher: whoever listens may still be there."""
    program = f"import subprocess, time; subprocess.Popen({words(tmp_path, 'time.sleep(900)')!r}); time.sleep(900)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL) as launcher:
        until_it_says(tmp_path / "rank-0.log", "begun")
        launcher.kill()
    cluster.wait_until(lambda: failures.read_failures(tmp_path), "it has ended", 200)
    assert failures.read_failures(tmp_path)[0].exit_code == -signal.SIGTERM


def test_a_rank_that_gets_ctrl_c_twice_may_still_save(tmp_path):
    """srun sends it to all processes of a task, and the watcher passes it on."""
    does = (
        "got = []\ndef stop(number, frame, got=got):\n    got.append(number); signal.signal(number, signal.SIG_DFL)\n"
        "signal.signal(2, stop); signal.signal(15, stop); print(os.getpid())\nwhile len(got) < 2: time.sleep(0.1)"
    )
    with running(tmp_path, does, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        for pid in (int(process.stdout.readline()), process.pid):
            os.kill(pid, signal.SIGINT)
        assert process.wait(200) == 0


def test_restarted_ranks_are_not_stopped(tmp_path):
    """torchrun does that with `launcher_args: --max-restarts=1`; each rank then removes the note on its last end."""
    with subprocess.Popen(["true"]) as launcher:
        run = _Run(print, remote=False, grace=1.0, logs=tmp_path)
        run.launcher = launcher
        failures.record_failure(tmp_path, 1, 1, Evidence())
        run._check_failures()
        assert run.deadline < float("inf")
        failures.reserve_files(tmp_path, 1)
        run._check_failures()
        assert run.deadline == float("inf")


def test_the_launcher_reports_a_failure_and_ends_waiting_ranks(tmp_path, monkeypatch):
    """Under a launcher that itself only waits for all of them."""
    monkeypatch.setattr("neoxargs.launch.start.run.AFTER_A_FAILURE", 1.0)
    ranks = {1: "os.kill(os.getpid(), 9)", 0: "time.sleep(900)"}
    program = "import os, subprocess, sys\nranks = [" + "".join(
        f"subprocess.Popen({words(tmp_path / 'logs', does)!r}, env={{**os.environ, 'RANK': '{number}'}}),"
        for number, does in ranks.items()
    )
    said: list[str] = []
    launcher = Command((sys.executable, "-c", program + "]\n[rank.wait() for rank in ranks]"), {})
    assert start(launcher, os.environ, said.append, logs=tmp_path / "logs").code == 128 + signal.SIGKILL
    assert said[0].startswith(f"rank 1 on {os.uname().nodename} failed first: SIGKILL: ")
    assert said[1].endswith("rank-1.log:\n  | begun")


# -- ranks without progress, and supervisors that are killed ---------------------------------------------------------

LATE = "failures.current_rank.watch.expect('step 3', 0.5); "


def test_a_rank_that_makes_no_progress_is_ended_with_its_stack(tmp_path):
    assert ended(tmp_path, LATE + "time.sleep(900)") == -signal.SIGKILL
    code, said = failures.summarize(tmp_path)
    assert code == 128 + signal.SIGKILL
    assert said[0].endswith("failed first: step 3 took longer than 0.5 s")
    assert said[1].startswith('the Python stack of rank 0, innermost call first:\n  | File "<string>", line 1 in ')
    assert failures.may_restart(tmp_path)


@pytest.mark.slow
def test_a_stopped_rank_is_told_apart_from_one_that_waits_for_it(tmp_path):
    """Both make no progress; the other one is inside a collective operation."""
    waits = "import time\\nprint(\\'waits\\')\\ntime.sleep(900)"
    frame = f"exec(compile('{waits}', '/venv/torch/distributed/distributed_c10d.py', 'exec'))"
    # The limit is long enough to stop before it, and begins when the other rank waits.
    stops = "log = folder / 'rank-0.log'\nwhile not log.exists() or 'waits' not in log.read_text(): time.sleep(0.1)\n"
    stops += LATE.replace("0.5", "4.0") + "os.kill(os.getpid(), signal.SIGSTOP)"
    with running(tmp_path, stops, 1) as stopped, running(tmp_path, frame, 0) as waiting:
        assert (stopped.wait(200), waiting.wait(200)) == (-signal.SIGKILL, -signal.SIGKILL)
    _, said = failures.summarize(tmp_path)
    assert "rank 1 on " in said[0]
    assert said[0].endswith("step 3 took longer than 4 s; the process is stopped, for example by SIGSTOP")
    pinned(said[1], "the Python")
    pinned(said[-1])


def test_progress_is_no_failure(tmp_path):
    """The limit begins again with each step."""
    does = "[(failures.current_rank.watch.expect(f'step {n}', 200.0), time.sleep(0.3)) for n in range(5)]"
    assert ended(tmp_path, does) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.log"]


def test_a_killed_supervisor_is_named_and_not_what_followed(tmp_path):
    """Its rank ends with it; the other rank is told to stop, and recorded that before."""
    with running(tmp_path, "time.sleep(900)", 1) as killed, running(tmp_path, "time.sleep(900)", 0) as other:
        for rank in range(2):
            until_it_says(tmp_path / f"rank-{rank}.log", "begun")
        killed.kill()
        killed.wait(200)
        other.terminate()
        other.wait(200)
        lost_ranks.record_lost(tmp_path)
        code, said = failures.summarize(tmp_path)
    assert code == 128 + signal.SIGKILL
    why = f"the rank's supervisor (process {killed.pid}) was killed (SIGKILL), so it is not known how the rank ended"
    assert said[0] == f"rank 1 on {os.uname().nodename} failed first: {why}"
    pinned(said[-1])
    assert failures.may_restart(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["rank-0.json", "rank-0.log", "rank-1.json", "rank-1.log"]


def test_a_supervisor_that_still_runs_is_not_reported(tmp_path):
    with running(tmp_path, "time.sleep(900)"):
        until_it_says(tmp_path / "rank-0.log", "begun")
        lost_ranks.record_lost(tmp_path)
        assert failures.summarize(tmp_path) == (0, [])


@pytest.mark.parametrize(("problem", "again"), [("checkpoint-missing", False), ("rendezvous-failed", True)])
def test_a_rank_that_explains_why_it_cannot_run_is_not_restarted(tmp_path, problem, again):
    does = f"from neoxargs.base.problems import Problem, Problems; raise Problems(Problem('no', id='{problem}'))"
    assert ended(tmp_path, does) == 1
    assert failures.may_restart(tmp_path) is again
