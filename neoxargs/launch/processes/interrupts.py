"""Ctrl-C (SIGINT): one line instead of a traceback, also while a program imports its modules."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Exit code of a program that was ended by Ctrl-C, as in a shell.
INTERRUPTED = 128 + signal.SIGINT


@contextmanager
def ignored_by_children() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block. Processes that are started in it ignore Ctrl-C until they end.

    Other threads must have Ctrl-C blocked, as those have that started before `accept`: in one of them it would be lost.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # blocked signals are kept, even if ignored
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def hold() -> None:
    """Delay Ctrl-C until `accept`. A program that replaces this process begins with Ctrl-C delayed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def accept() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, immediately if it was pressed since `hold`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def report(what: str = "") -> int:
    """Print that Ctrl-C ended the program, and return its exit code. what: what has become of its work."""
    print("deepy: interrupted" + (f"; {what}" if what else ""), file=sys.stderr, flush=True)
    return INTERRUPTED
