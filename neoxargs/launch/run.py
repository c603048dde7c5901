"""Start the ranks, wait for them, and leave none behind.

A rank that is asked to stop once finishes its step, saves and leaves; asked twice it dies. DeepSpeed's launcher, asked
to stop, asks its ranks again, and DeepSpeed's runner dies without telling the launcher, which would train on. So on
this machine only the ranks are asked, and whatever is still there after a grace period is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from neoxargs.launch.command import Command

Say = Callable[[str], None]

#: Writing a large checkpoint takes minutes; who does not want to wait asks twice.
GRACE = 300.0
#: For processes that outlive the launcher without having been asked to stop.
LEFT_BEHIND = 5.0
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Process(NamedTuple):
    """What the system knows about a process."""

    pid: int
    state: str
    parent: int
    group: int


def start(command: Command, environ: Mapping[str, str], say: Say, remote: bool = False, grace: float = GRACE) -> int:
    """Run a command to its end and return its exit code; a signal to this process ends the run.

    remote: the ranks run on other machines, where only the launcher can reach them.
    """
    process = subprocess.Popen(command.words, env=command.environ(environ), start_new_session=True)
    run = _Run(process, say, remote, grace)
    previous: dict[int, Any] = {number: signal.signal(number, run.forward) for number in FORWARDED}
    try:
        returncode = run.wait()
        killed = run.clear()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if run.received:
        return 128 + run.received  # also when the ranks saved first: what waits for the whole run must not go on
    return _exit_code(returncode, say) or int(killed)


class _Run:
    """A launcher and all that it has started: one process group."""

    def __init__(self, launcher: subprocess.Popen[bytes], say: Say, remote: bool, grace: float) -> None:
        self.launcher, self.say, self.remote, self.grace = launcher, say, remote, grace
        self.received = 0
        self.deadline = float("inf")

    def forward(self, number: int, frame: FrameType | None) -> None:
        """SIGINT, SIGTERM, SIGHUP: the first asks the ranks to stop, the second kills them."""
        if self.received:
            _signal_group(self.launcher.pid, signal.SIGKILL)
            return
        self.received = number
        self.deadline = time.monotonic() + self.grace
        self.say(f"{signal.Signals(number).name}: asking the ranks to stop ... (once more kills them)")
        ranks = [] if self.remote else self.ranks()
        for rank in ranks:  # SIGTERM whatever came: a KeyboardInterrupt would print one traceback per rank
            _signal(rank, signal.SIGTERM)
        if not ranks:
            _signal_group(self.launcher.pid, signal.SIGTERM)

    def wait(self) -> int:
        while True:
            try:
                return self.launcher.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                if time.monotonic() > self.deadline:
                    _signal_group(self.launcher.pid, signal.SIGKILL)

    def clear(self) -> bool:
        """Wait for what the launcher left behind; True if it had to be killed."""
        left = self._still_there(self.deadline - time.monotonic() if self.received else LEFT_BEHIND)
        if left:
            self.say(f"killing {left} processes that the launcher left behind")
            _signal_group(self.launcher.pid, signal.SIGKILL)
            self._still_there(LEFT_BEHIND)
        return bool(left)

    def _still_there(self, seconds: float) -> int:
        """How many processes of the group are left when all are gone or the time is over."""
        deadline = time.monotonic() + seconds
        while (left := len(members(self.launcher.pid))) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def ranks(self) -> list[int]:
        """The children of the launcher's children: runner -> launch -> ranks."""
        table = members(self.launcher.pid)
        launches = {process.pid for process in table if process.parent == self.launcher.pid}
        return [process.pid for process in table if process.parent in launches]


def members(group: int) -> list[Process]:
    """The living processes of a process group (a zombie that nobody collects does not count)."""
    if not Path("/proc/self/stat").exists():
        return [Process(group, "?", 0, group)] if _signal_group(group, 0) else []
    everyone = (_process(path) for path in Path("/proc").glob("[0-9]*/stat"))
    return [process for process in everyone if process and process.group == group and process.state not in "ZX"]


def _process(stat: Path) -> Process | None:
    try:
        state, parent, group = stat.read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return None  # gone meanwhile
    return Process(int(stat.parent.name), state, int(parent), int(group))


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _signal_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _exit_code(returncode: int, say: Say) -> int:
    """The first failing rank's exit code, as a shell would give it."""
    # DeepSpeed's launcher passes a death by SIGKILL on as -9, which arrives as 247
    number = -returncode if returncode < 0 else 256 - returncode if returncode > 256 - signal.NSIG else 0
    if number:
        names = {member.value: member.name for member in signal.Signals}
        reason = ", which the system sends when memory runs out" if number == signal.SIGKILL else ""
        say(f"a rank was ended by {names.get(number, f'signal {number}')}{reason}")
        return 128 + number
    if returncode:
        say(f"a rank failed with exit code {returncode}; what it said stands above")
    return returncode
