"""End a process without waiting until Python has freed all modules, which takes a second if torch was imported."""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import signal
import sys
from typing import NoReturn


def exit_at_once(code: int) -> NoReturn:
    """End this process after its exit handlers; output that cannot be written is lost."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def end_by_signal(number: int) -> None:
    """End by the signal that ended a child process, for the parent to see, without a second core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The handler of SIGKILL cannot be set.
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
