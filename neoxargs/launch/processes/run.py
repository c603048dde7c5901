"""Start the ranks, wait for them, and leave none behind.

A rank that is asked to stop once finishes its step, saves and leaves; asked twice it ends at once. DeepSpeed's
launcher, asked to stop, asks its ranks again, and DeepSpeed's runner ends without telling the launcher, which would
train on. So on this machine only the ranks are asked, and what is still there after a grace period is killed.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from neoxargs.launch.launchers.command import Command
from neoxargs.launch.processes import failures
from neoxargs.launch.processes.exit_codes import signal_name
from neoxargs.launch.processes.process_tree import (
    SessionGuard,
    kill_session,
    send_signal,
    session_members,
    signal_group,
)

Say = Callable[[str], None]

#: Writing a large checkpoint takes minutes; who does not want to wait asks twice.
GRACE = 300.0
#: For processes that outlive the launcher without having been asked to stop.
AFTER_LAUNCHER_ENDED = 5.0
#: For the other ranks, which may have to notice it, once one has failed.
AFTER_A_FAILURE = 15.0
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start(
    command: Command, environ: Mapping[str, str], say: Say, remote: bool = False, grace: float = GRACE,
    logs: Path | None = None,
) -> int:  # fmt: skip
    """Run a command to its end and return its exit code; a signal to this process ends the run.

    remote: the ranks run on other machines, where only the launcher can reach them. logs: where ranks that are
    supervised (`supervisor.py`) keep their logs and record their failures.
    """
    process = subprocess.Popen(command.words, env=command.environ(environ), start_new_session=True)
    guard = SessionGuard(process.pid)
    run = _Run(process, say, remote, grace, logs)
    previous: dict[int, Any] = {number: signal.signal(number, run.forward) for number in FORWARDED}
    try:
        returncode = run.wait()
        killed = run.end_leftovers()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        guard.end()
    if run.received:
        return 128 + run.received  # also when the ranks saved first: what waits for the whole run must not go on
    code, sentences = failures.summarize(logs) if logs else (0, [])
    for sentence in sentences:
        say(sentence)
    return code or _exit_code(returncode, say) or int(killed)


class _Run:
    """A launcher and all that it has started: one session, in which `mpirun` gives every rank a group of its own."""

    def __init__(
        self, launcher: subprocess.Popen[bytes], say: Say, remote: bool, grace: float, logs: Path | None
    ) -> None:
        self.launcher, self.say, self.remote, self.grace, self.logs = launcher, say, remote, grace, logs
        self.received = 0
        self.deadline = float("inf")

    def forward(self, number: int, frame: FrameType | None) -> None:
        """SIGINT, SIGTERM, SIGHUP: the first asks the ranks to stop, the second kills them."""
        if self.received:
            kill_session(self.launcher.pid)
            return
        self.received = number
        self.deadline = time.monotonic() + self.grace
        self.say(f"{signal.Signals(number).name}: asking the ranks to stop ... (once more kills them)")
        ranks = [] if self.remote else self.ranks()
        for rank in ranks:  # SIGTERM whatever came: a KeyboardInterrupt would print one traceback per rank
            send_signal(rank, signal.SIGTERM)
        if not ranks:
            signal_group(self.launcher.pid, signal.SIGTERM)

    def wait(self) -> int:
        while True:
            try:
                return self.launcher.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                self._check_failures()
                if time.monotonic() > self.deadline:
                    kill_session(self.launcher.pid)

    def _check_failures(self) -> None:
        """Once a rank has failed the others can only wait for it; not every launcher ends them."""
        if self.received:
            return
        if not self.logs or not failures.any_failed(self.logs):
            self.deadline = float("inf")  # also when a launcher, told to, has started all of them anew
        elif self.deadline == float("inf"):
            self.deadline = time.monotonic() + AFTER_A_FAILURE
        elif self.remote and time.monotonic() > self.deadline - AFTER_LAUNCHER_ENDED:
            signal_group(self.launcher.pid, signal.SIGTERM)  # DeepSpeed's runner then ends what is on other machines

    def end_leftovers(self) -> bool:
        """Wait for what the launcher left behind; True if it had to be killed."""
        left = self._wait_until_empty(self.deadline - time.monotonic() if self.received else AFTER_LAUNCHER_ENDED)
        if left:
            self.say(f"killing {left} processes that the launcher left behind")
            kill_session(self.launcher.pid)
            self._wait_until_empty(AFTER_LAUNCHER_ENDED)
        return bool(left)

    def _wait_until_empty(self, seconds: float) -> int:
        """How many processes of the session are left when all are gone or the time is over."""
        deadline = time.monotonic() + seconds
        while (left := len(session_members(self.launcher.pid))) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def ranks(self) -> list[int]:
        """The children of the launcher's children: runner -> launch -> ranks."""
        table = session_members(self.launcher.pid)
        launches = {process.pid for process in table if process.parent == self.launcher.pid}
        return [process.pid for process in table if process.parent in launches]


def _exit_code(returncode: int, say: Say) -> int:
    """The first failing rank's exit code, as a shell would give it."""
    # DeepSpeed's launcher passes a death by SIGKILL on as -9, which arrives as 247
    number = -returncode if returncode < 0 else 256 - returncode if returncode > 256 - signal.NSIG else 0
    if number:
        reason = ", which the system sends when memory runs out" if number == signal.SIGKILL else ""
        say(f"a rank was ended by {signal_name(number)}{reason}")
        return 128 + number
    if returncode:
        say(f"a rank failed with exit code {returncode}; what it said stands above")
    return returncode
