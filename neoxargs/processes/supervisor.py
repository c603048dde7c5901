"""Run a rank under a supervisor process, which writes a log of the rank's output and a record of its failure.

Launchers pass on only the exit code of some failed rank, and a process that the system kills cannot report anything.
The rank is therefore forked before torch is imported. The small parent process copies the rank's output, forwards
signals, and records how the rank failed; `failures.py` writes and reads these records.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import io
import os
import pty
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

from neoxargs.processes import failures, run_lock
from neoxargs.processes import watch as watching
from neoxargs.processes.console_filter import ConsoleFilter
from neoxargs.processes.exit_at_once import end_by_signal, exit_at_once
from neoxargs.processes.exit_codes import Evidence, count_memory_kills
from neoxargs.processes.interrupts import delayed, heeded
from neoxargs.processes.process_tree import send_signal, signal_when_parent_ends
from neoxargs.processes.run_lock import RunLock
from neoxargs.processes.watch import Lateness, Watch

#: Signals that launchers and job schedulers send.
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: Seconds until a rank that was asked to stop is killed if another rank has failed, which it may wait for forever.
AFTER_ANOTHER_FAILED = 10.0
#: Seconds that a rank has to save a checkpoint after its launcher was killed.
AFTER_LAUNCHER_KILLED = 300.0
_GONE = select.POLLERR | select.POLLHUP


def run_supervised(
    run: Callable[[], int], folder: Path, save: str | None = None, show_all: bool = False,
    lock: RunLock | None = None, exits_early: bool = False,
) -> int:  # fmt: skip
    """Run this rank in a child process and return its exit code; if a signal ended it, end by the same signal.

    folder: the folder for the logs and records of this attempt, the same on all ranks. save: the folder for
    checkpoints. show_all: do not filter what the rank prints on the console. lock: the lock of the run, which this
    process holds too; its rank inherits it. exits_early: whether the rank may exit with code 0 before its work is done.
    """
    if not hasattr(os, "pidfd_open"):  # Linux only; needed to poll for output and the end of a process together
        return run()
    rank, kills = int(os.environ.get("RANK", 0)), count_memory_kills()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        failures.reserve_files(folder, rank)
        # Opened before it is needed, because a rank that hangs cannot open a file.
        watch, stacks = Watch(), watching.stack_file(folder, rank).open("w", encoding="utf-8")
        log = failures.log_file(folder, rank).open("ab", buffering=0)
    except OSError as error:
        text = f"deepy: rank {rank} cannot write its log to {folder}: {error.strerror}; free up space and inodes there"
        print(text, file=sys.stderr, flush=True)
        return 1
    outputs = [_Output(console, None if show_all else ConsoleFilter()) for console in (1, 2)]
    # Otherwise both processes would print what is still buffered.
    sys.stdout.flush()
    sys.stderr.flush()
    with delayed(FORWARDED) as mask:  # until they are passed on
        supervisor_pid, pid = os.getpid(), os.fork()
        if not pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _become_rank(outputs, supervisor_pid, stacks)
            failures.current_rank = failures.CurrentRank(folder, rank, save, watch)
            code = run()
            watch.finish()
            os.kill(supervisor_pid, signal.SIGCONT)  # it would never collect this process if somebody has stopped it
            exit_at_once(code)
        supervisor = _Supervisor(pid, outputs, folder, watch, lock)
    # Appended to, because the rank writes to the same file too (`failures.append_log`).
    with log as file, lock or contextlib.nullcontext():
        code, peak = supervisor.wait(file)
    left_early = code == 0 and not watch.finished and not exits_early
    if code or left_early:
        lost = lock.lost if lock else None
        killed_because = run_lock.taken_over(lost) if lost else supervisor.lateness.reason
        kills = count_memory_kills() - kills
        evidence = Evidence(peak, kills, supervisor.asked_to_stop, killed_because, bool(lost), left_early)
        code = code or 1
        failures.record_failure(folder, rank, code, evidence)
        code = 1 if lost else code
    failures.release_files(folder, rank)
    if code < 0:
        end_by_signal(-code)
    return code


class _Output:
    """Standard output or error of the rank, which writes to `inner`; `outer` is copied to the log and `console`."""

    def __init__(self, console: int, console_filter: ConsoleFilter | None) -> None:
        self.console, self.filter = console, console_filter
        if not os.isatty(console):
            self.outer, self.inner = os.pipe()
            return
        self.outer, self.inner = pty.openpty()  # progress bars are only drawn on a terminal, and need its size
        # Raw, because the console's own terminal already translates the ends of lines.
        tty.setraw(self.inner)
        # bytes(8): the size of struct winsize.
        fcntl.ioctl(self.inner, termios.TIOCSWINSZ, fcntl.ioctl(console, termios.TIOCGWINSZ, bytes(8)))

    def read(self) -> bytes:
        """Return the available bytes; empty at the end of the stream."""
        try:
            return os.read(self.outer, 1 << 16)
        except OSError:  # a pseudo terminal whose other end is closed
            return b""

    def show(self, data: bytes) -> None:
        """Write to the console what the filter passes."""
        self._write(self.filter.feed(data) if self.filter else data)

    def finish(self) -> None:
        """Write what the filter still holds."""
        if self.filter:
            self._write(self.filter.finish())

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a closed console; `_Supervisor` polls for that
            while data:
                data = data[os.write(self.console, data) :]


class _Supervisor:
    """Copies the output of a rank, forwards signals to it and enforces deadlines until it ends."""

    file: IO[bytes]

    def __init__(self, pid: int, outputs: list[_Output], folder: Path, watch: Watch, lock: RunLock | None) -> None:
        self.pid, self.folder, self.launcher = pid, folder, os.getppid()
        self.lateness, self.lock = Lateness(watch, folder), lock
        self.asked_to_stop, self.deadline = False, float("inf")
        self.outputs = {output.outer: output for output in outputs}
        self.process, self.poll = os.pidfd_open(pid), select.poll()
        self.poll.register(self.process, select.POLLIN)
        for output in outputs:
            os.close(output.inner)
            self.poll.register(output.outer, select.POLLIN)
            # 0: only errors and the end of the console, which are reported without being asked for.
            self.poll.register(output.console, 0)
        for number in heeded(FORWARDED):
            signal.signal(number, self._forward)

    def wait(self, file: IO[bytes]) -> tuple[int, int]:
        """Return the rank's exit code (negative: the signal that ended it) and its peak memory in bytes.

        file: the rank's log.
        """
        self.file, ended = file, False
        while not ended:
            events = dict(self.poll.poll(500))
            ended = self.process in events
            for descriptor, event in events.items():
                self._handle(descriptor, event)
            self._enforce_deadline()
        for output in self.outputs.values():  # do not wait for the end: a child of the rank may keep the stream open
            while select.select([output.outer], [], [], 0)[0] and self._copy(output):
                pass
            output.finish()
        _, status, usage = os.wait4(self.pid, 0)
        # Linux counts ru_maxrss in KiB.
        return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024

    def _handle(self, descriptor: int, event: int) -> None:
        if descriptor in self.outputs:
            if not self._copy(self.outputs[descriptor]):
                self.poll.unregister(descriptor)
        elif descriptor != self.process:
            self.poll.unregister(descriptor)
            if event & _GONE:  # the ssh connection or the terminal closed: let the rank save a checkpoint and exit
                self._forward(signal.SIGTERM, None)

    def _copy(self, output: _Output) -> bool:
        data = output.read()
        with contextlib.suppress(OSError):  # a full disk must not end the run
            self.file.write(data)
        output.show(data)
        return bool(data)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self.asked_to_stop = True
        if number == signal.SIGINT:  # Ctrl-C reaches the rank itself too, and a second SIGINT would end it unsaved
            number = signal.SIGTERM
        send_signal(self.pid, number)

    def _enforce_deadline(self) -> None:
        # A process whose parent has ended gets another one: the launcher was killed, and nothing else would stop the
        # rank. The same if deepy was killed, which would have ended the launcher.
        if self.launcher and (os.getppid() != self.launcher or (self.lock and self.lock.deepy_ended)):
            self.launcher, self.deadline = 0, time.monotonic() + AFTER_LAUNCHER_KILLED
            self._forward(signal.SIGTERM, None)
        if self.asked_to_stop and failures.any_failed(self.folder):
            self.deadline = min(self.deadline, time.monotonic() + AFTER_ANOTHER_FAILED)
        if time.monotonic() > self.deadline or (self.lock and self.lock.lost):
            self._forward(signal.SIGKILL, None)
        if number := self.lateness.check(self.pid):
            send_signal(self.pid, number)


# faulthandler prints the Python stack if native code crashes, and writes it to `stacks` on STACK_SIGNAL. It does so
# within the signal handler, so it works for a rank that hangs in native code.
def _become_rank(outputs: list[_Output], supervisor: int, stacks: IO[str]) -> None:
    signal_when_parent_ends(signal.SIGKILL)
    if os.getppid() != supervisor:  # it was killed before prctl took effect
        os._exit(1)
    for output in outputs:
        os.dup2(output.inner, output.console)
        os.close(output.inner)
        os.close(output.outer)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # `python -u` would write parts of lines, and ranks would mix theirs
            stream.reconfigure(line_buffering=True, write_through=False)
    faulthandler.enable()
    faulthandler.register(watching.STACK_SIGNAL, stacks)
