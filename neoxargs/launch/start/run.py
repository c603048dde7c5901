"""Start the ranks, wait for them, and leave no process behind.

A rank saves a checkpoint and exits after its first SIGTERM, and a script of the user may end at once after the second.
DeepSpeed's launcher kills its ranks after a SIGTERM, torchrun after 30 seconds; DeepSpeed's runner ends without
stopping the launcher, which would continue to train. Therefore only the ranks of this machine get the signal, unless
the launcher is one that passes it on as it should, and processes that still run after a grace period are killed.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from neoxargs.launch.command.command import Command
from neoxargs.launch.start import lost_ranks
from neoxargs.processes import failures
from neoxargs.processes.exit_codes import signal_name
from neoxargs.processes.interrupts import heeded
from neoxargs.processes.process_tree import (
    SessionGuard,
    kill_session,
    send_signal,
    session_members,
    signal_group,
    stopped_parents,
)
from neoxargs.processes.run_lock import RunLock, taken_over

Say = Callable[[str], None]

#: Seconds after a request to stop; writing a large checkpoint takes minutes. A second signal ends the run at once.
GRACE = 300.0
#: Seconds in which further signals belong to the first: `timeout` and srun signal a process and its group.
SAME_REQUEST = 1.0
#: Seconds for processes that outlive the launcher without a request to stop.
AFTER_LAUNCHER_ENDED = 5.0
#: Seconds for the other ranks after one has failed; some only notice it at the next collective operation.
AFTER_A_FAILURE = 15.0
#: Seconds between two looks at all processes for stopped ones.
LOOK_FOR_STOPPED = 5.0
#: Variables in which a launcher numbers its ranks. This process has one if it was started as the only rank of one.
RANK_NUMBERS = ("LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK")
#: Exit code with which ssh reports its own failure; `over_ssh` and pdsh pass it on.
SSH_FAILED = 255
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(NamedTuple):
    """How an attempt ended.

    may_restart: whether it failed by itself, in a way that the next attempt may not. asked: whether it was told to end.
    """

    code: int
    may_restart: bool = False
    asked: bool = False


def start(
    command: Command, environ: Mapping[str, str], say: Say, remote: bool = False, grace: float = GRACE,
    logs: Path | None = None, lock: RunLock | None = None,
) -> Ended:  # fmt: skip
    """Run a command to its end; a signal to this process ends the run.

    remote: the ranks run on other hosts, where only the launcher can reach them. grace: seconds between a request to
    stop and the end of the run. logs: the folder of the logs and failure records of supervised ranks. lock: the run
    ends at once if another run takes it over.
    """
    run = _Run(say, remote, grace, logs, lock)
    # Before the launcher starts: a signal at any moment of the start is passed on.
    previous: dict[int, Any] = {number: signal.signal(number, run.forward) for number in heeded(FORWARDED)}
    try:
        run.launch(command, environ)
        returncode = run.wait()
        killed = run.end_leftovers()
    except BaseException:  # nothing else would end the ranks
        run.kill()
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        run.close()
    if run.received:  # even if the ranks saved a checkpoint: a script must not continue as after a full run
        return Ended(128 + run.received, asked=True)
    # Looked at again: a rank may have ended because it noticed before this process did.
    if lock and (lost := lock.lost_now()):
        say(taken_over(lost))
        return Ended(1)
    # Ranks of other hosts may outlive the launcher by some seconds and write their records then.
    if remote and logs and returncode:
        lost_ranks.wait_for_ranks(logs, AFTER_LAUNCHER_ENDED)
    if logs:
        lost_ranks.record_lost(logs)
    code, sentences = failures.summarize(logs) if logs else (0, [])
    for sentence in sentences:
        say(sentence)
    # The ranks' records say how they ended. A run whose processes had to be killed has not succeeded, even if its
    # launcher ended with 0.
    code = code or _exit_code(returncode, say, command.launcher.passes_stop_on, remote) or int(killed)
    return Ended(code, bool(code) and failures.may_restart(logs))


class _Run:
    """A launcher and its descendants: one session, in which `mpirun` puts every rank into its own process group."""

    launcher: subprocess.Popen[bytes] | None = None
    guard: SessionGuard | None = None

    def __init__(self, say: Say, remote: bool, grace: float, logs: Path | None, lock: RunLock | None = None) -> None:
        self.tell, self.remote, self.grace, self.logs = say, remote, grace, logs
        self.lock = lock
        self.received, self.passes_stop_on, self.asked = 0, False, set[lost_ranks.Supervisor]()
        self.deadline, self.look_at, self.received_at = float("inf"), 0.0, 0.0

    @property
    def session(self) -> int:
        assert self.launcher
        return self.launcher.pid

    def launch(self, command: Command, environ: Mapping[str, str]) -> None:
        """Start the launcher."""
        self.passes_stop_on = command.launcher.passes_stop_on
        variables = {name: value for name, value in command.environ(environ).items() if name not in RANK_NUMBERS}
        # A session of its own: Ctrl-C on the terminal reaches only this process, and all descendants can be found.
        # It inherits the locks of the run, by which the next run knows that this one has not ended.
        self.launcher = subprocess.Popen(command.words, env=variables, start_new_session=True, close_fds=False)
        self.guard = SessionGuard(self.session)
        if self.received:  # perhaps before there was a launcher; a second request changes nothing at its start
            self._ask_to_stop()

    def close(self) -> None:
        """Collect the launcher, which has ended or was killed, and end the guard."""
        if self.launcher:
            self.launcher.wait()
        if self.guard:
            self.guard.end()

    def forward(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT, SIGTERM and SIGHUP: the first asks the ranks to stop, the second kills them."""
        # Printed last: a console that takes no more, such as that of `less`, must not delay the signals.
        if self.received:
            if time.monotonic() < self.received_at + SAME_REQUEST:
                return
            self.kill()
            self.say(f"{signal.Signals(number).name}: killed the ranks")
            return
        self.received, self.received_at = number, time.monotonic()
        self.deadline = self.received_at + self.grace
        self._ask_to_stop()
        self.say(f"{signal.Signals(number).name}: asked the ranks to stop; send the signal again to kill them")

    def say(self, text: str) -> None:
        # A closed console; or a signal while this process prints, which Python's streams refuse with a RuntimeError.
        with contextlib.suppress(OSError, RuntimeError):
            self.tell(text)

    def kill(self) -> None:
        """Kill the launcher and the ranks, if they exist."""
        if self.launcher:
            kill_session(self.session)

    def _ask_to_stop(self) -> None:
        if not self.launcher:
            return
        # Always SIGTERM: after SIGINT every rank would print a traceback of KeyboardInterrupt.
        if self.passes_stop_on:
            send_signal(self.session, signal.SIGTERM)
        elif not self._ask_ranks():  # before they exist, or on other hosts: the launcher passes it on or ends
            signal_group(self.session, signal.SIGTERM)

    def _ask_ranks(self) -> bool:
        """Ask each rank of this machine to stop that has said that it is one, and was not asked; return if any has."""
        known = lost_ranks.supervisors(self.logs) if self.logs and not self.remote else ()
        for rank in {rank for _, rank in known if rank.here and not rank.ended} - self.asked:
            self.asked.add(rank)
            send_signal(rank.pid, signal.SIGTERM)
        return bool(self.asked)

    def wait(self) -> int:
        """Wait for the launcher, enforce the deadline, and return the launcher's exit code."""
        assert self.launcher
        while True:
            # Polled: neither the records of failed ranks nor a lost lock wake this process.
            try:
                return self.launcher.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                self._check_failures()
                self._check_helpers()
                if self.asked:  # a rank that said so later than the others
                    self._ask_ranks()
                if time.monotonic() > self.deadline or (self.lock and self.lock.lost):
                    self.kill()

    def _check_failures(self) -> None:
        """Set a deadline once a rank has failed: the others can only wait for it, and not every launcher ends them."""
        if self.received:
            return
        if not self.logs or not failures.any_failed(self.logs):
            self.deadline = float("inf")  # reset: a launcher with restarts may have started all ranks again
        elif self.deadline == float("inf"):
            self.deadline = time.monotonic() + AFTER_A_FAILURE
        elif self.remote and time.monotonic() > self.deadline - AFTER_LAUNCHER_ENDED:
            signal_group(self.session, signal.SIGTERM)  # DeepSpeed's runner then ends the ranks of other hosts

    def _check_helpers(self) -> None:
        """Replace a guard that was killed, and wake processes that cannot notice that the ranks have ended."""
        if self.guard and self.guard.ended:
            self.guard = SessionGuard(self.session)
        if time.monotonic() > self.look_at:
            self.look_at = time.monotonic() + LOOK_FOR_STOPPED
            for pid in stopped_parents(self.session):
                self.say(f"process {pid} is stopped, but a process that it waits for has ended: sent it SIGCONT")
                send_signal(pid, signal.SIGCONT)

    def end_leftovers(self) -> bool:
        """Wait for the processes that outlive the launcher; return whether they had to be killed."""
        left = self._wait_until_empty(self.deadline - time.monotonic() if self.received else AFTER_LAUNCHER_ENDED)
        if left:
            self.say(f"killing {left} {'process' if left == 1 else 'processes'} that outlived the launcher")
            self.kill()
            self._wait_until_empty(AFTER_LAUNCHER_ENDED)
        return bool(left)

    def _wait_until_empty(self, seconds: float) -> int:
        """Return how many processes of the session still run after at most this time."""
        deadline = time.monotonic() + seconds
        while (left := len(session_members(self.session))) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left


def _exit_code(returncode: int, say: Say, of_a_rank: bool, remote: bool) -> int:
    """Report and return the launcher's exit code as a shell shows it, where no rank has recorded how it ended.

    of_a_rank: whether it is that of the first rank that failed, as it was.
    """
    if remote and returncode == SSH_FAILED:
        say("the connection to a host failed or was lost, or a rank exited with code 255; the error message is above")
        return returncode
    if returncode < 0:
        starter = "the process that started the ranks"
        who = f"a rank, or {starter}," if of_a_rank else starter
        reason = " (which the system also sends if memory runs out)" if returncode == -signal.SIGKILL else ""
        say(f"{who} was terminated by {signal_name(-returncode)}{reason}")
        return 128 - returncode
    if returncode and of_a_rank:
        say(f"a rank failed with exit code {returncode}; its error message is above")
    elif returncode:
        say(
            f"the launcher failed with exit code {returncode}, and no rank has recorded why; the error message is above"
        )
    return returncode
