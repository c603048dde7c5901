"""`deepy check --watch`: check again whenever a file has changed, until Ctrl-C."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable

from neoxargs.base.problems import Problems, report

#: Seconds between two looks at the files.
INTERVAL = 0.3
#: Erases a terminal and puts the cursor into its first line (ECMA-48).
CLEAR = "\033[2J\033[H"
#: Begins each report but the first where nothing is erased.
LINE = "-" * 72


def watch(check: Callable[[], object], files: Callable[[], Iterable[str]]) -> int:
    """Check whenever the state of a file has changed. files: returns their names, which may change as well."""
    is_first = True
    try:
        while True:
            before = _state(files())  # before the check, so that what is saved meanwhile is seen
            if sys.stdout.isatty():
                print(CLEAR, end="", flush=True)
            elif not is_first:
                print(f"\n{LINE}", flush=True)
            is_first = False
            try:
                check()
            except Problems as stop:
                report(stop.problems)
            count = len(before)
            print(f"\nwatching {count} file{'s' * (count != 1)}; Ctrl-C ends", flush=True)
            while _state(files()) == before:
                time.sleep(INTERVAL)
    except KeyboardInterrupt:
        return 0


def _state(files: Iterable[str]) -> dict[str, object]:
    """Return what differs when a file was written, replaced or removed."""
    return {name: state_of(name) for name in files}


def state_of(name: str) -> object:
    """Return what differs when a file was written or replaced; None if there is none."""
    try:
        status = os.stat(name)
    except OSError:  # an editor may be replacing it
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
