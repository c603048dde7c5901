"""A rank under a supervisor: all it prints is kept in a log of its own, and how it failed is recorded beside it.

Launchers pass on the exit code of some rank that failed, and a process that the system kills says nothing. So the
rank is forked off before torch is imported, and the small process that stays copies its output, passes signals on,
and records how the rank failed; `failures.py` writes, reads and words these records.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import io
import os
import pty
import resource
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO

from neoxargs.launch.processes import failures
from neoxargs.launch.processes.exit_codes import Evidence, count_memory_kills

#: What launchers and job systems send to processes.
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: How long a rank may go on that is asked to stop when another one has failed: it may wait for that one for ever.
AFTER_ANOTHER_FAILED = 10.0
#: How long one may take to save whose launcher was killed.
AFTER_LAUNCHER_KILLED = 300.0
_PR_SET_PDEATHSIG = 1
_GONE = select.POLLERR | select.POLLHUP


def run_supervised(run: Callable[[], int], folder: Path, save: str | None = None) -> int:
    """Run this rank in a process of its own; returns its exit code, or dies by the signal that it died of.

    folder: where the logs and records of this attempt are kept, the same on all ranks. save: where checkpoints go.
    """
    if not hasattr(os, "pidfd_open"):  # only Linux can wait for output and an end at once
        return run()
    folder.mkdir(parents=True, exist_ok=True)
    rank, outputs, kills = int(os.environ.get("RANK", 0)), [_Output(1), _Output(2)], count_memory_kills()
    failures.reserve_files(folder, rank)
    sys.stdout.flush()
    sys.stderr.flush()
    supervisor_pid, pid = os.getpid(), os.fork()
    if not pid:
        _become_rank(outputs, supervisor_pid)
        failures.current_rank = failures.CurrentRank(folder, rank, save)
        return run()
    with failures.log_file(folder, rank).open("ab", buffering=0) as file:
        supervisor = _Supervisor(pid, outputs, file, folder)
        code, peak = supervisor.wait()
    if code:
        evidence = Evidence(peak, count_memory_kills() - kills, supervisor.asked_to_stop)
        failures.record_failure(folder, rank, code, evidence)
    failures.release_files(folder, rank)
    if code < 0:
        _die_by_signal(-code)
    return code


class _Output:
    """Standard output or error of the rank: what it writes to `inner` is read from `outer`, for `console`."""

    def __init__(self, console: int) -> None:
        self.console = console
        if not os.isatty(console):
            self.outer, self.inner = os.pipe()
            return
        self.outer, self.inner = pty.openpty()  # a progress bar is drawn for a terminal only, and in its size
        tty.setraw(self.inner)
        fcntl.ioctl(self.inner, termios.TIOCSWINSZ, fcntl.ioctl(console, termios.TIOCGWINSZ, bytes(8)))

    def read(self) -> bytes:
        """What there is; nothing at the end."""
        try:
            return os.read(self.outer, 1 << 16)
        except OSError:  # of a terminal whose other end is closed
            return b""

    def show(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody listens; `_Supervisor` sees that by itself
            while data:
                data = data[os.write(self.console, data) :]


class _Supervisor:
    """What the process that stays does."""

    def __init__(self, pid: int, outputs: list[_Output], file: IO[bytes], folder: Path) -> None:
        self.pid, self.file, self.folder, self.launcher = pid, file, folder, os.getppid()
        self.asked_to_stop, self.deadline = False, float("inf")
        self.outputs = {output.outer: output for output in outputs}
        self.process, self.poll = os.pidfd_open(pid), select.poll()
        self.poll.register(self.process, select.POLLIN)
        for output in outputs:
            os.close(output.inner)
            self.poll.register(output.outer, select.POLLIN)
            self.poll.register(output.console, 0)
        for number in FORWARDED:
            signal.signal(number, self._forward)

    def wait(self) -> tuple[int, int]:
        """The rank's exit code (negative: of a signal) and the most memory it held, in bytes."""
        ended = False
        while not ended:
            events = dict(self.poll.poll(500))
            ended = self.process in events
            for descriptor, event in events.items():
                self._handle(descriptor, event)
            self._enforce_deadline()
        for output in self.outputs.values():  # a child of the rank may hold them open
            while select.select([output.outer], [], [], 0)[0] and self._copy(output):
                pass
        _, status, usage = os.wait4(self.pid, 0)
        return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024

    def _handle(self, descriptor: int, event: int) -> None:
        if descriptor in self.outputs:
            if not self._copy(self.outputs[descriptor]):
                self.poll.unregister(descriptor)
        elif descriptor != self.process:
            self.poll.unregister(descriptor)
            if event & _GONE:  # a connection broke, or who watched the run was killed: it saves and leaves
                self._forward(signal.SIGTERM, None)

    def _copy(self, output: _Output) -> bool:
        data = output.read()
        with contextlib.suppress(OSError):  # a full disk must not end the run
            self.file.write(data)
        output.show(data)
        return bool(data)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self.asked_to_stop = True
        if number == signal.SIGINT:  # of which a rank that gets it itself too would die, without having saved
            number = signal.SIGTERM
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _enforce_deadline(self) -> None:
        if self.launcher and os.getppid() != self.launcher:
            self.launcher, self.deadline = 0, time.monotonic() + AFTER_LAUNCHER_KILLED
            self._forward(signal.SIGTERM, None)
        if self.asked_to_stop and failures.any_failed(self.folder):
            self.deadline = min(self.deadline, time.monotonic() + AFTER_ANOTHER_FAILED)
        if time.monotonic() > self.deadline:
            self._forward(signal.SIGKILL, None)


def _become_rank(outputs: list[_Output], supervisor: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it was killed before that
        os._exit(1)
    for output in outputs:
        os.dup2(output.inner, output.console)
        os.close(output.inner)
        os.close(output.outer)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whole lines, also where `python -u` would write words, to be mixed
            stream.reconfigure(line_buffering=True, write_through=False)
    faulthandler.enable()


def _die_by_signal(number: int) -> None:
    """So that the launcher sees the same end; the rank itself has left the core file, if any."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
