"""The processes of a run: those in the launcher's session, and descendants that left it, such as torchrun's ranks."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Linux's number in <sys/prctl.h>: the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


class Process(NamedTuple):
    """A process as /proc describes it."""

    pid: int
    state: str
    parent: int
    session: int
    started: str
    """In clock ticks since the machine's start."""


def session_members(session: int) -> list[Process]:
    """Return the running processes of a session and all their descendants, without zombies."""
    return [process for process in _members(session) if process.state not in "ZX"]


def stopped_parents(session: int) -> list[int]:
    """Return the processes that somebody has stopped (SIGSTOP), and that therefore do not collect an ended child."""
    members = _members(session)
    bereaved = {process.parent for process in members if process.state == "Z"}
    return [process.pid for process in members if process.state == "T" and process.pid in bereaved]


def _members(session: int) -> list[Process]:
    # Not on Linux: only the process group can be asked, and it counts as one process.
    if not Path("/proc/self/stat").exists():
        return [Process(session, "?", 0, session, HIDDEN)] if signal_group(session, 0) else []
    everyone = [process for path in Path("/proc").glob("[0-9]*/stat") if (process := _process(path))]
    pids = {process.pid for process in everyone if process.session == session}
    while children := {process.pid for process in everyone if process.parent in pids} - pids:
        pids |= children
    return [process for process in everyone if process.pid in pids]


def kill_session(session: int) -> None:
    """Kill all processes of a session and their descendants."""
    related = session_members(session)  # before the kill: afterwards, orphans are no longer known as descendants
    signal_group(session, signal.SIGKILL)
    # Listed once more for processes that were forked in the meantime.
    for process in [*related, *session_members(session)]:
        send_signal(process.pid, signal.SIGKILL)


class SessionGuard:
    """Kills a session if this process itself is killed, by `kill -9` or by the system when memory runs out.

    A helper process reads from a pipe, which the system closes when this process ends.
    """

    def __init__(self, session: int) -> None:
        # In a session of its own, so that neither Ctrl-C nor `kill_session` ends it. The working directory may be any,
        # so the helper gets this process's import path.
        words = [sys.executable, "-c", f"from neoxargs.processes.process_tree import guard; guard({session})"]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, env=environ)

    @property
    def ended(self) -> bool:
        """Whether the helper itself was killed."""
        return self.process.poll() is not None

    def end(self) -> None:
        # Closing its input instead would make it kill the session.
        self.process.kill()
        self.process.communicate()


def guard(session: int) -> None:
    """Wait for the end of standard input, then kill the session; runs in the process of a SessionGuard."""
    sys.stdin.read()
    kill_session(session)


#: The start time of a process that exists but cannot be examined.
HIDDEN = "?"


def start_time(pid: int) -> str:
    """Return when a process was started, as `Process.started`; "" if it has ended."""
    if process := _process(Path(f"/proc/{pid}/stat")):
        return "" if process.state in "ZX" else process.started
    return HIDDEN if _exists(pid) else ""


def state(pid: int) -> str:
    """Return the letter of a process's state, such as S (sleeping) or T (stopped); "" if it is not known."""
    process = _process(Path(f"/proc/{pid}/stat"))
    return process.state if process else ""


def _exists(pid: int) -> bool:
    """Return whether a process exists, without /proc: another system, or one that hides other users' processes."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _process(stat: Path) -> Process | None:
    try:
        # the name in parentheses may contain anything, and may be cut within a UTF-8 character
        fields = stat.read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return None  # the process has ended
    # Of proc(5), the first field after the name is field 3 (state); field 22 is the start time.
    return Process(int(stat.parent.name), fields[0], int(fields[1]), int(fields[3]), fields[19])


def signal_when_parent_ends(number: int) -> None:
    """Let the system send this process a signal when its parent ends, where it can (Linux)."""
    if prctl := getattr(ctypes.CDLL(None), "prctl", None):
        prctl(_PR_SET_PDEATHSIG, number)


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process, if it still exists."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group and return whether it exists."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
