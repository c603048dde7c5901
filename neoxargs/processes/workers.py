"""Worker processes that only their parent stops, so that a signal to a whole run does not end them too early."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from threading import Thread
from typing import cast


def obey_the_parent_only() -> None:
    """In a worker process: end by a SIGTERM of the parent, and ignore SIGINT, SIGHUP and everybody else's SIGTERM.

    Slurm, launchers and terminals signal all processes of a run to stop it. A rank then finishes its step, for which it
    needs its workers, and saves a checkpoint; a pool whose worker ends while it sends a result never returns.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        # A blocked signal waits for the thread, which learns who sent it; a Python handler would not know.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        # Typeshed has no class for what this function returns, which has the attributes used here.
        parent = cast(BaseProcess, multiprocessing.parent_process())
        Thread(target=_end_with, args=(parent,), daemon=True).start()


def end_workers_at_exit() -> None:
    """End the workers of this process when it exits, before Python does so, which sends one SIGTERM and waits."""
    Finalize(None, end_workers, exitpriority=0)


def end_workers() -> None:
    """End the daemonic child processes of this process."""
    for worker in multiprocessing.active_children():
        # Repeated: a SIGTERM that arrives while one of somebody else is pending merges with it.
        while worker.daemon and worker.is_alive():
            worker.terminate()
            worker.join(0.1)


def _end_with(parent: BaseProcess) -> None:
    """Wait for a SIGTERM of the parent, or for its end."""
    while parent.is_alive():
        received = signal.sigtimedwait({signal.SIGTERM}, 1.0)
        if received and received.si_pid == parent.pid:
            break
    # Without the exit handlers of the parent, of which this process may be a copy.
    os._exit(0)
