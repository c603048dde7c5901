"""The processes of a run: the launcher's session, and what left it, as every rank of torchrun does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """What the system knows about a process."""

    pid: int
    state: str
    parent: int
    session: int


def session_members(session: int) -> list[Process]:
    """The living processes of a session and all their descendants (a zombie that nobody collects does not count)."""
    if not Path("/proc/self/stat").exists():
        return [Process(session, "?", 0, session)] if signal_group(session, 0) else []
    everyone = [process for path in Path("/proc").glob("[0-9]*/stat") if (process := _process(path))]
    pids = {process.pid for process in everyone if process.session == session}
    while more := {process.pid for process in everyone if process.parent in pids} - pids:
        pids |= more
    return [process for process in everyone if process.pid in pids and process.state not in "ZX"]


def kill_session(session: int) -> None:
    """End all processes of a session at once."""
    related = session_members(session)  # asked before: whose parent has ended is nobody's descendant
    signal_group(session, signal.SIGKILL)
    for process in [*related, *session_members(session)]:
        send_signal(process.pid, signal.SIGKILL)


class SessionGuard:
    """Kills a session when this process has been killed: by `kill -9`, or by the system when memory runs out.

    The system closes our end of a pipe then, which a process of its own waits for.
    """

    def __init__(self, session: int) -> None:
        words = [sys.executable, "-c", f"from neoxargs.launch.processes.process_tree import guard; guard({session})"]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, env=environ)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def guard(session: int) -> None:
    """What a SessionGuard runs."""
    sys.stdin.read()
    kill_session(session)


def _process(stat: Path) -> Process | None:
    try:
        # what stands in brackets is the process's name, which may be cut within a letter
        state, parent, _, session = stat.read_bytes().rpartition(b")")[2].decode().split()[:4]
    except OSError:
        return None  # gone meanwhile
    return Process(int(stat.parent.name), state, int(parent), int(session))


def send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def signal_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
