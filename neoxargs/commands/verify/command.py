"""`deepy verify FILE ...`: show on this machine's CPUs that every setting does what it says."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neoxargs.base.options import add_json
from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.base.request import Request
from neoxargs.base.text import format_percent, wrap
from neoxargs.checks.machine.packages import missing_for
from neoxargs.commands.verify.judge import Verdict
from neoxargs.commands.verify.shrink import SHORT, STEPS
from neoxargs.commands.verify.verify import Report, verify
from neoxargs.processes.interrupts import raise_on_sigterm
from neoxargs.runs.run_spec import resolve_run

DESCRIPTION = (
    "Train a small model with the settings of a configuration on this machine's CPUs, in its layout reduced to at most "
    "4 ranks, and compare it with one process, with plain torch, and with runs in which one setting has another value. "
    "Says of every key of the files whether it does what it says, within minutes; the exit code is 1 if a key is "
    "contradicted. GPU kernels and NCCL are not covered."
)
#: Beginning of the name of a folder for trials.
PREFIX = "deepy-verify-"
WIDTH = 100
NOT_COVERED = "GPU kernels and NCCL are not covered: the trials ran on CPUs, with gloo."
ORDER = ("contradicted", "shown", "not shown")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    parser.add_argument("--keep", metavar="DIR", help="keep the trials' files in this folder, which must not exist")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if a setting is contradicted. Raises Problems."""
    raise_on_sigterm()
    if absent := list(missing_for("deepy verify", ("torch", "deepspeed", "numpy"))):
        raise Problems(absent)
    spec = resolve_run(Request.of(options), os.environ)
    with temporary_folder() as temporary:
        folder = _made(options.keep) if options.keep else temporary
        meter = _Meter()
        report = verify(spec, folder, meter.show)
        meter.end()
    print(json.dumps(to_json(report), indent=1) if options.json else to_text(report))
    return int(any(verdict.outcome == "contradicted" for verdict in report.verdicts))


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder that is locked until it is removed, and remove those of runs that were killed."""
    for other in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # A folder of the last minute may have no lock yet.
        with contextlib.suppress(OSError):
            if time.time() - other.stat().st_mtime > 60 and other.stat().st_uid == os.getuid():
                with _locked(other):
                    shutil.rmtree(other)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, _locked(Path(name)):
        yield Path(name)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder, which the system releases when this process ends; raises OSError if it is held."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _made(name: str) -> Path:
    """Create the folder of `--keep` and return it; raises Problems if it exists."""
    folder = Path(name)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        what, hint = "this exists already, and --keep needs a folder that does not", "use a different name"
        raise Problems(Problem(what, Place(name, 0, 0), hint, id="output-file-exists")) from None
    return folder


class _Meter:
    """One line on a terminal's standard error that says how many trials are done."""

    def __init__(self) -> None:
        self.done, self.shown = 0, sys.stderr.isatty()

    def show(self, name: str, total: int) -> None:
        self.done += 1
        if self.shown:
            line = f"\r\x1b[Ktrial {self.done} of {max(total, self.done)}: {re.sub(r' [0-9]$', '', name)}"
            print(line[:100], end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def to_text(report: Report) -> str:
    """Return the report as lines of at most WIDTH columns."""
    lines = [_head(report), ""]
    for title, verdicts in (("the run", report.properties), ("the keys", report.settings)):
        lines.append(title)
        for verdict in sorted(verdicts, key=lambda each: ORDER.index(each.outcome)):
            lines += _entry(verdict)
        lines.append("")
    shown = sum(verdict.outcome == "shown" for verdict in report.settings)
    wrong = [verdict.name for verdict in report.verdicts if verdict.outcome == "contradicted"]
    counted = f"{shown} of {len(report.settings)} keys are shown ({format_percent(shown, len(report.settings))})"
    return "\n".join([*lines, f"{counted}; contradicted: {', '.join(wrong) or 'none'}", NOT_COVERED])


def _head(report: Report) -> str:
    small, base = report.small, report.base
    shape, parallel = base.shape, base.parallel
    layout = f"tensor {parallel.model_parallel_size} x pipeline {max(1, parallel.pipe_parallel_size)} on "
    layout = f"context {parallel.context_parallel_size} x " * (parallel.context_parallel_size > 1) + layout
    layout += f"{small.ranks} {'rank' if small.ranks == 1 else 'ranks'}"
    return (
        f"{report.count} trials, of {STEPS} steps, or of {SHORT} for single keys: {shape.num_layers} layers of width "
        f"{shape.hidden_size}, sequences of {shape.seq_length}, {layout}"
    )


def _entry(verdict: Verdict) -> list[str]:
    label = f"  {verdict.outcome:<13}{verdict.name}"
    if len(label) + 2 + len(verdict.text) <= WIDTH:
        return [f"{label}: {verdict.text}"]
    return [label, *(f"{'':<17}{line}" for line in wrap(verdict.text, WIDTH - 17, "") or [""])]


def to_json(report: Report) -> dict[str, Any]:
    """Return the report for a program."""

    def rows(verdicts: tuple[Verdict, ...]) -> list[dict[str, Any]]:
        return [{"name": v.name, "outcome": v.outcome, "text": v.text, "about": list(v.keys)} for v in verdicts]

    return {
        "ok": all(verdict.outcome != "contradicted" for verdict in report.verdicts),
        "ranks": report.small.ranks,
        "trials": report.count,
        "reduced": dict(report.small.values),
        "run": rows(report.properties),
        "keys": rows(report.settings),
        "not_covered": NOT_COVERED,
    }
