"""Lines of torch and DeepSpeed that tell the user nothing reach the log, but not the console."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from neoxargs.processes.console_filter import ConsoleFilter, shows_all
from tests.support.configure import smallest_run

NOISE = [
    "[2026-11-22 03:19:45,041] [WARNING] [lr_schedules.py:734:get_lr] Attempting to get learning rate from scheduler "
    "before it has started",
    "[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3",
    "[W1122 03:19:45.1 socket.cpp:755] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
    "[rank0]:[W1122 03:19:45.1 ProcessGroupNCCL.cpp:5023] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 as device used by "
    "this process is currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect.",
    "[rank0]:[W1122 03:19:45.1 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not called "
    "before program exit, which can leak resources.",
]
SHOWN = [
    "iteration 10/20 | loss 4.1384",
    "error: the loss is nan at iteration 3 [loss-not-finite]",
    "[2026-11-22 03:19:45,041] [WARNING] [engine.py:1937:_do_sanity_check] some other warning",
    "[Gloo] Rank 0 is connected to 2 peer ranks. Expected number of connected peer ranks is : 3",
    "[rank1]:[E1122 03:19:45.1 ProcessGroupNCCL.cpp:629] Watchdog caught collective operation timeout",
    "Traceback (most recent call last):",
]

#: A rank that prints the lines of a file.
RANK = """
import pathlib, sys
from neoxargs.processes.supervisor import run_supervised

def run():
    print(pathlib.Path(sys.argv[2]).read_text(), end="", file=sys.stderr)
    return 0

sys.exit(run_supervised(run, pathlib.Path(sys.argv[1]), show_all=len(sys.argv) > 3))
"""


@pytest.mark.parametrize("line", NOISE)
def test_noise_is_removed_however_it_arrives(line: str) -> None:
    text = f"before\n{line}\nafter\n".encode()
    for size in (1, 7, len(text)):
        console = ConsoleFilter()
        pieces = [console.feed(text[start : start + size]) for start in range(0, len(text), size)]
        assert b"".join([*pieces, console.finish()]) == b"before\nafter\n"


@pytest.mark.parametrize("line", SHOWN)
def test_everything_else_is_shown(line: str) -> None:
    assert ConsoleFilter().feed(f"{line}\n".encode()) == f"{line}\n".encode()


def test_a_progress_bar_is_shown_at_once() -> None:
    console = ConsoleFilter()
    assert console.feed(b"\r10 % done") == b"\r10 % done"
    assert console.feed(b"\r20 % done") == b"\r20 % done"
    assert console.feed(b"\n[####    ]") == b"\n[####    ]"
    assert console.finish() == b""


def test_an_unfinished_line_is_shown_at_the_end() -> None:
    console = ConsoleFilter()
    assert console.feed(b"[2026-11-22 03:19:45] last words") == b""
    assert console.finish() == b"[2026-11-22 03:19:45] last words"


@pytest.mark.parametrize("show_all", [[], ["all"]])
def test_the_log_of_a_rank_has_every_line(tmp_path: Path, show_all: list[str]) -> None:
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in [*NOISE, *SHOWN]))
    words = [sys.executable, "-c", RANK, str(tmp_path), str(tmp_path / "lines"), *show_all]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert (tmp_path / "rank-0.log").read_text().splitlines() == [*NOISE, *SHOWN]
    assert done.stderr.splitlines() == ([*NOISE, *SHOWN] if show_all else SHOWN)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", False), ("log_level: info\n", True), ("log_level: debug\n", True), ("log_level: warning\n", False)],
)
def test_log_level_shows_every_line(text: str, expected: bool) -> None:
    assert shows_all(smallest_run(text)) == expected
