"""A user's script under a foreign launcher: asked to stop once, and its end recorded as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neoxargs.hosts.environment import with_package
from neoxargs.launch.command.command import SCRIPT_RANK_FILE
from neoxargs.processes import failures
from neoxargs.targets.wire_format import script_arguments
from tests.support import cluster
from tests.support.configure import configure

#: A script that is a copy of train.py is a rank under a supervisor of its own.
SUPERVISED = """
from neoxargs.processes import failures, supervisor
from neoxargs.targets.wire_format import parse_rank_arguments
arguments = parse_rank_arguments(sys.argv[1:])
def run():
    failures.record_exception(ValueError("its own reason"))
    return 1
sys.exit(supervisor.run_supervised(run, failures.logs_folder(arguments.config, arguments.attempt)))
"""


def started(folder: Path, does: str) -> subprocess.Popen[str]:
    """Start rank 1 of two as DeepSpeed's launcher does, with a script that does this."""
    (folder / "script.py").write_text(f"import os, signal, sys, time\n{does}")
    config = configure(f"run_dir: {folder}/run\n")
    words = [sys.executable, SCRIPT_RANK_FILE, "--local_rank=1", "script.py", *script_arguments(config, "one")]
    numbers = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    return subprocess.Popen(
        words, cwd=folder, env=with_package(os.environ) | numbers, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "run" / "logs" / "one").iterdir())


@pytest.mark.parametrize(
    ("does", "code", "reason"),
    [
        ("sys.exit(247)", 247, "exit code 247"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "SIGKILL: killed by a user"),
        (SUPERVISED, 1, "ValueError: its own reason"),
    ],
)
def test_how_a_script_failed_is_recorded_and_passed_on(tmp_path: Path, does: str, code: int, reason: str) -> None:
    with started(tmp_path, does) as rank:
        rank.communicate(timeout=100)
    assert rank.returncode == code
    [record] = failures.read_failures(tmp_path / "run" / "logs" / "one")
    assert (record.rank, record.exit_code) == (1, code)
    assert record.reason.startswith(reason)
    assert [name for name in left(tmp_path) if name != "rank-1.log"] == ["rank-1.json"]


def test_a_script_that_succeeds_leaves_nothing(tmp_path: Path) -> None:
    """It has the arguments and the unbuffered output that launchers give it."""
    with started(tmp_path, "print(sys.argv[0], sys.argv[1], sys.stdout.write_through)") as rank:
        output, _ = rank.communicate(timeout=100)
    assert (rank.returncode, output) == (0, "script.py --local_rank=1 True\n")
    assert left(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_script_gets_the_signals_of_its_launcher_and_does_not_outlive_it(tmp_path: Path, number: int) -> None:
    stops = "signal.signal(15, lambda *_: (print('asked', flush=True), sys.exit(3)))\n"
    with started(tmp_path, f"{stops}print(os.getpid(), flush=True)\ntime.sleep(900)") as rank:
        assert rank.stdout
        pid = int(rank.stdout.readline())
        rank.send_signal(number)
        output, _ = rank.communicate(timeout=100)
    assert (rank.returncode, output) == ((3, "asked\n") if number == signal.SIGTERM else (-signal.SIGKILL, ""))
    cluster.wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the script has ended", 100)
