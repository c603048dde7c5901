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
from typing import Any


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
def delayed(numbers: Iterable[signal.Signals]) -> Iterator[set[Any]]:
    """Delay signals to this thread until the end of the block; processes and threads that start in it begin so.

    Yields the signals that were delayed before, from which a child process can go on with `SIG_SETMASK`.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def ignored_by_children() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the block. Processes that start in it ignore Ctrl-C until they end.

    So a process that starts is known to who has to end it. Other threads must have Ctrl-C blocked, as those have that
    started before `accept`: in one of them it would be lost.
    """
    with delayed({signal.SIGINT}):  # delayed signals are kept, even if ignored
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with _sigterm_noted():
                yield
        finally:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _sigterm_noted() -> Iterator[None]:
    """Delay SIGTERM by a handler, which processes that start in the block do not inherit as they would a mask."""
    noted: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if noted:
            signal.raise_signal(signal.SIGTERM)


def hold() -> None:
    """Delay Ctrl-C until `accept`. A program that replaces this process begins with Ctrl-C delayed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def accept() -> None:
    """Let Ctrl-C and SIGTERM raise KeyboardInterrupt, immediately if Ctrl-C was pressed since `hold`."""
    raise_on_sigterm()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def report(what: str = "", stop: KeyboardInterrupt | None = None) -> int:
    """Print what ended the program, and return its exit code, as of a shell. what: what has become of its work."""
    terminated = isinstance(stop, Terminated)
    by = " by SIGTERM" if terminated else ""
    print(f"deepy: interrupted{by}" + (f"; {what}" if what else ""), file=sys.stderr, flush=True)
    return 128 + (signal.SIGTERM if terminated else signal.SIGINT)


def report_step(what: str, stop: KeyboardInterrupt) -> int:
    """Do the same, but leave the line to deepy if this process is a step of a launch, which ignores Ctrl-C."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        return 128 + signal.SIGTERM
    return report(what, stop)


def reader_gone() -> int:
    """Discard what is still to be printed after a BrokenPipeError (`deepy ... | head`); return the exit code."""
    # Otherwise, flushing stdout at the end of the process would raise the same error again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
