"""Runs the trials of bench/on_gpu.py in processes of their own: on one device, or as ranks with a GPU each.

A trial that fails, hangs or ends a process costs its own row: all its processes are killed, and new ones go on with the
next trial. They also end with this process, however that ends.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from neoxargs.hosts.rendezvous import unused_port  # noqa: E402
from neoxargs.processes.process_tree import kill_session, send_signal  # noqa: E402

CHILD = ROOT / "bench" / "gpu_trials.py"
Row = dict[str, Any]
NO_TIME = "no time left"
#: Seconds for the start of processes; for other ranks, or what is left to do, when one has ended; to write a traceback.
START, GRACE, TRACE = 120.0, 5.0, 1.0
#: A line of a traceback that `faulthandler` writes.
FRAME = re.compile(rf'File "{re.escape(str(ROOT))}/(?!.*site-packages)(.+)", line (\d+) in')


def run_trials(
    trials: Sequence[Any], end: float, environment: dict[str, str], ranks: int = 1, limit: float = math.inf
) -> list[list[Row]]:
    """Return of each trial the row of every rank; only one, with an error, if a rank failed or there was no time.

    end: of `time.monotonic`. limit: seconds of a trial.
    """
    rows: list[list[Row]] = []
    while len(rows) < len(trials):
        if time.monotonic() >= end:
            rows += [[{"error": NO_TIME}]] * (len(trials) - len(rows))
        else:
            rows += _run(trials[len(rows) :], end, environment, ranks, limit)
    return rows


def _run(trials: Sequence[Any], end: float, environment: dict[str, str], ranks: int, limit: float) -> list[list[Row]]:
    """Return the rows of the first trials: up to the one that ended a process, or at which its time was over."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "trials")
        given.write_text(json.dumps(trials))
        together = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())}
        children: list[_Child] = []
        try:
            for rank in range(ranks):
                own = together | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
                children.append(_Child(rank, given, environment | own))
            problem = _watch(children, len(trials), end, limit)
        finally:
            for child in children:
                child.end()
        rows = [list(of_ranks) for of_ranks in zip(*(child.rows() for child in children), strict=False)]
        rows = [of_ranks if ranks == 1 else _judged(of_ranks) for of_ranks in rows]
        # A rank ends after an error after which it cannot go on, whose row says it already.
        if len(rows) < len(trials) and not (rows and "error" in rows[-1][0]):
            rows.append([{"error": problem}])
        return rows


class _Child:
    """A process that runs trials."""

    def __init__(self, rank: int, given: Path, environment: dict[str, str]) -> None:
        self.rank, self.results, self.log = rank, given.with_name(f"rows-{rank}"), given.with_name(f"log-{rank}")
        self.results.touch()
        with given.open() as trials, self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(CHILD), str(self.results)], stdin=trials, stdout=log, stderr=subprocess.STDOUT,
                env=os.environ | environment, start_new_session=True,
            )  # fmt: skip

    def rows(self) -> list[Row]:
        return [json.loads(line) for line in self.results.read_text().splitlines(True) if line.endswith("\n")]

    @property
    def count(self) -> int:
        """Number of trials that are over."""
        return self.results.read_bytes().count(b"\n")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def last_line(self) -> str:
        return (self.log.read_text(errors="replace").splitlines() or [""])[-1]

    def end(self) -> None:
        """Kill the process and those that it has started."""
        kill_session(self.process.pid)
        self.process.wait()


def _watch(children: Sequence[_Child], trials: int, end: float, limit: float) -> str:
    """Wait until all trials are over, or one has failed. Return what failed, or ""."""
    done, began, start = 0, time.monotonic(), START
    while True:
        now, least = time.monotonic(), min(child.count for child in children)
        if least > done:
            done, began, start = least, now, 0.0
        if done == trials:
            _wait_for_end(children)
            return ""
        if any(child.ended and child.count < trials for child in children):
            _wait_for_end(children)
            return _failure(children, trials)
        if now >= min(began + start + limit, end):
            return _places(children, now - began)
        time.sleep(0.1)


def _wait_for_end(children: Sequence[_Child]) -> None:
    until = time.monotonic() + GRACE
    while time.monotonic() < until and not all(child.ended for child in children):
        time.sleep(0.1)


def _failure(children: Sequence[_Child], trials: int) -> str:
    """Return what the first rank that failed says. Others fail because they wait for it."""
    done = min(child.count for child in children)
    failed = [row for child in children for row in child.rows()[done:] if "error" in row]
    reported = {row.get("rank", 0) for row in failed}
    silent = [child for child in children if child.ended and child.count < trials and child.rank not in reported]
    if not silent:
        return _first_error(failed)
    child = silent[0]
    what = "ended without a result"
    if len(children) > 1:
        what = f"rank {child.rank} ended without a result (exit code {child.process.returncode})"
    return f"{what}: {child.last_line()}".rstrip(": ")


def _first_error(rows: Sequence[Row]) -> str:
    failed = [row for row in rows if "error" in row]
    first = min(failed, key=lambda row: row.get("at", 0.0))  # type: ignore[no-any-return]
    return f"rank {first['rank']}: {first['error']}" if "rank" in first else str(first["error"])


def _judged(rows: list[Row]) -> list[Row]:
    """Return the rows of a trial, or one row with the first error."""
    return [{"error": _first_error(rows)}] if any("error" in row for row in rows) else rows


def _places(children: Sequence[_Child], seconds: float) -> str:
    """Return which lines the ranks execute; without them, the last line of the log."""
    what = f"no result within {seconds:.0f} s"
    last, least = children[0].last_line(), min(child.count for child in children)
    for child in children:
        send_signal(child.process.pid, signal.SIGUSR1)  # gpu_trials.py writes a traceback
    time.sleep(TRACE)
    ranks: dict[str, list[str]] = {}
    for child in children:
        frames = FRAME.findall(child.log.read_text(errors="replace"))
        if frames and child.count == least:
            ranks.setdefault(":".join(frames[0]), []).append(str(child.rank))
    if len(children) == 1 or not ranks:
        return f"{what}: {last}".rstrip(": ")
    where = (f"rank{'s' if len(who) > 1 else ''} {', '.join(who)} at {place}" for place, who in ranks.items())
    return f"{what}: {'; '.join(where)}"
