"""Ctrl-C (SIGINT) and SIGTERM: one line instead of a traceback or of nothing, also while a program imports modules.

The same for a pipe whose reader has ended.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """A SIGTERM, which ends a program as Ctrl-C does."""


def raise_on_sigterm() -> None:
    """Let SIGTERM raise an exception, so that incomplete files and locks are removed and child processes ended."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends a program whose cleanup takes long
    raise Terminated


def heeded(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return these signals, without SIGHUP if this process ignores it: under `nohup`, a run outlives its terminal."""
    return [number for number in numbers if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def delayed(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Delay signals to this thread until the end of the block; processes and threads that start in it begin so."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def ignored_by_children() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block. Processes that are started in it ignore Ctrl-C until they end.

    Other threads must have Ctrl-C blocked, as those have that started before `accept`: in one of them it would be lost.
    """
    with delayed({signal.SIGINT}):  # delayed signals are kept, even if ignored
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def hold() -> None:
    """Delay Ctrl-C until `accept`. A program that replaces this process begins with Ctrl-C delayed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def accept() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, immediately if it was pressed since `hold`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def report(what: str = "", stop: KeyboardInterrupt | None = None) -> int:
    """Print what ended the program, and return its exit code, as of a shell. what: what has become of its work."""
    terminated = isinstance(stop, Terminated)
    by = " by SIGTERM" if terminated else ""
    print(f"deepy: interrupted{by}" + (f"; {what}" if what else ""), file=sys.stderr, flush=True)
    return 128 + (signal.SIGTERM if terminated else signal.SIGINT)


def reader_gone() -> int:
    """Discard what is still to be printed after a BrokenPipeError (`deepy ... | head`); return the exit code."""
    # Otherwise, flushing stdout at the end of the process would raise the same error again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
