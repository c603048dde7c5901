"""Starts trials: one set of ranks runs all trials of a layout, one after the other; one process forks all sets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from neoxargs.base.programs import TRIALS
from neoxargs.processes.process_tree import kill_session
from neoxargs.targets.trial import Trial

#: Seconds without a result after which the ranks of a trial are ended.
PATIENCE = 300.0
#: Starts of the ranks, one after the other, without the result of any trial, after which no more are made.
IN_VAIN = 3
#: Seconds between two looks for results.
POLL = 0.1

#: What a trial showed, as JSON (`train/trials/observe.py`); `refused` has the problems of one that could not run.
Observed = dict[str, Any]


class Program:
    """A process that has imported what a rank needs, and forks the ranks of one file of trials after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, trials: Sequence[Trial], ranks: int, file: Path, done: Callable[[str], None]) -> dict[str, Observed]:
        """Run the trials on that many ranks of this machine; return name -> what it showed.

        file: where the trials are written; what they print and show stands beside it. done: told of each trial's end.
        """
        found: dict[str, Observed] = {}
        rest, in_vain = list(trials), 0
        while rest:
            file.write_text("".join(trial.line() for trial in rest), encoding="utf-8")
            shown = self._until_failure(file, ranks, done)
            found |= shown
            in_vain = 0 if shown else in_vain + 1
            rest = [trial for trial in rest if trial.name not in found]
            # The first of them has ended the ranks; after several starts without a result, something ends all of them.
            for trial in rest if in_vain == IN_VAIN else rest[:1]:
                found[trial.name] = {"refused": [_last_error(file)]}
                done(trial.name)
            rest = [trial for trial in rest if trial.name not in found]
        return found

    def _until_failure(self, file: Path, ranks: int, done: Callable[[str], None]) -> dict[str, Observed]:
        """Run trials until one ends the ranks, or all are done; return what they showed."""
        results, end = file.with_name(f"{file.name}.observed"), file.with_name(f"{file.name}.ended")
        for earlier in (results, end):
            earlier.unlink(missing_ok=True)
        shown: dict[str, Observed] = {}
        process = self._ask(file, ranks)
        last = time.monotonic()
        ended = False
        while not ended and time.monotonic() - last < PATIENCE:
            ended = end.exists() or process.poll() is not None
            written = results.read_text(encoding="utf-8") if results.exists() else ""
            for line in written.rpartition("\n")[0].splitlines()[len(shown) :]:  # the last line may be incomplete
                last, observed = time.monotonic(), json.loads(line)
                shown[observed["name"]] = observed
                done(observed["name"])
            time.sleep(0 if ended else POLL)
        if not end.exists():
            self._end()
        return shown

    def _ask(self, file: Path, ranks: int) -> subprocess.Popen[str]:
        """Name the trials to the process, which starts if there is none; return it."""
        with open(file.with_name(f"{file.name}.log"), "wb") as log:
            if self._process is None:
                words = [sys.executable, "-m", TRIALS, str(os.getpid())]
                environ = os.environ | {"OMP_NUM_THREADS": "1"}  # torch reads it when it is imported
                self._process = subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, start_new_session=True, env=environ
                )
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is seen as for any other trial
            print(json.dumps([str(file), ranks]), file=self._process.stdin, flush=True)
        return self._process

    def _end(self) -> None:
        """End the process with all ranks, if there is one."""
        if self._process:
            kill_session(self._process.pid)
            self._process.communicate()
        self._process = None


def _last_error(file: Path) -> str:
    """Return the last line that is an exception's."""
    log = file.with_name(f"{file.name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
    lines = [re.sub(r"^\[rank\d+\]: ", "", line) for line in log]  # as torch marks the lines of a traceback
    errors = [line for line in lines if line[:1].isalpha() and "Error" in line.partition(":")[0]]
    return errors[-1] if errors else f"no result within {PATIENCE:.0f} s"
