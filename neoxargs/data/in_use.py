"""Of two commands that write one token file, the second is refused: each of its files would be of either."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neoxargs.base.problems import Problems, sentence
from neoxargs.files.token_files.made_from import writing
from neoxargs.processes.run_lock import RunLock, lock_token_file

#: Seconds between two attempts to take a lock that another command holds.
AGAIN = 0.5


@contextmanager
def locked(prefix: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a token file, of its labels and of its rewards; raises Problems.

    wait: wait until another command that holds it has ended.
    """
    new = [folder for folder in prefix.parents if not os.path.exists(folder)]
    try:
        with writing(prefix):
            prefix.parent.mkdir(parents=True, exist_ok=True)
            lock = _waited(prefix) if wait else lock_token_file(prefix, os.environ)
        with lock:
            yield
    finally:
        for folder in new:
            with suppress(OSError):  # a file was written to it
                folder.rmdir()


def _waited(prefix: Path) -> RunLock:
    told = False
    while True:
        try:
            return lock_token_file(prefix, os.environ)
        except Problems as held:
            if not told:
                print(f"waiting: {sentence(held.problems[0])}", file=sys.stderr, flush=True)
            told = True
            time.sleep(AGAIN)
