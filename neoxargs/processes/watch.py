"""Detect a rank that makes no progress: the rank announces a deadline, and its supervisor checks it.

A rank and its supervisor share a page of memory. Before each step, evaluation and save the rank writes a deadline to
it, which it learns from the steps so far. When one passes, all supervisors of the run make their ranks write their
Python stacks, and kill them.
"""

from __future__ import annotations

import contextlib
import mmap
import signal
import time
from collections import deque
from pathlib import Path
from statistics import median

from neoxargs.processes.process_tree import state

#: The signal that makes a rank write its stack; a real-time signal, which neither launchers nor schedulers send.
STACK_SIGNAL = signal.SIGRTMIN + 5
#: A step is late after this many times the median step, but not before `FLOOR` seconds.
PATIENCE = 30
FLOOR = 180.0
#: The first step compiles and connects; it, evaluations and saves may take this many times as long as a step, but at
#: least `LONG_FLOOR` seconds if the limit is learnt.
LONG = 10
LONG_FLOOR = 1800.0
#: Seconds for all ranks to write stacks and records, before the first is killed and the others lose their connections.
COLLECT = 10.0
#: Steps from which the median is taken.
WINDOW = 101
#: File in the folder of an attempt: a rank is late, so all write their stacks.
LATE_FILE = ".late"

#: States in which a process cannot write its stack.
STATES = {
    "T": "; the process is stopped, for example by SIGSTOP",
    "t": "; the process is stopped by a debugger",
    "D": "; the process is waiting for a disk, a file system or a device",
}

#: Bytes of the shared memory: the deadline and the seconds until it, each a double; what the rank does; whether it is
#: done; whether its record of collective operations is wanted.
_TIMES, _TEXT, _FINISHED, _RECORD = slice(0, 16), slice(16, 128), 128, 129


class Watch:
    """The memory that a rank shares with its supervisor: what the rank does, how long it may take, and until when."""

    def __init__(self) -> None:
        # Anonymous shared memory: the rank and its supervisor have the same page after the fork.
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.times = memoryview(self.memory)[_TIMES].cast("d")
        Watch.expect(self, "", float("inf"))

    def expect(self, what: str, seconds: float) -> None:
        """Announce that the rank will call this again within this time. what: the current work, such as "step 3"."""
        size = _TEXT.stop - _TEXT.start
        self.memory[_TEXT] = what.encode()[:size].ljust(size, bytes(1))
        self.times[1] = seconds
        # One aligned store, because the supervisor may read at any moment. struct.pack_into would first write zeros.
        self.times[0] = time.monotonic() + seconds

    def finish(self) -> None:
        """Announce that the rank has done its work, or reported why it could not, and exits now."""
        self.memory[_FINISHED] = 1

    @property
    def finished(self) -> bool:
        return bool(self.memory[_FINISHED])

    @property
    def record_wanted(self) -> bool:
        """Whether the rank is to write what torch's flight recorder has of it."""
        return bool(self.memory[_RECORD])

    def ask_for_record(self) -> None:
        self.memory[_RECORD] = 1

    def late(self) -> str:
        """Return what the rank has not finished in time, "" if it is in time."""
        if time.monotonic() <= self.times[0]:
            return ""
        # The text may have been cut within a character.
        what = self.memory[_TEXT].rstrip(bytes(1)).decode(errors="replace")
        return f"{what} took longer than {self.times[1]:.3g} s"


class Progress:
    """Announces the work of a rank, with limits that it learns.

    fixed: `step_timeout`; None to learn the limit of a step, 0 to have none.
    """

    def __init__(self, watch: Watch | None = None, fixed: float | None = None) -> None:
        self.watch, self.fixed = watch, fixed
        self.seconds: deque[float] = deque(maxlen=WINDOW)

    def step(self, iteration: int) -> None:
        """Announce a step."""
        self._announce(f"step {iteration}", self.limit() if self.seconds else self.long_limit())

    def took(self, seconds: float) -> None:
        """Learn from the time of a step."""
        self.seconds.append(seconds)

    def long(self, what: str) -> None:
        """Announce an evaluation or a save."""
        self._announce(what, self.long_limit())

    def done(self) -> None:
        """Announce that nothing more is due."""
        self._announce("", float("inf"))

    def limit(self) -> float:
        """Return the seconds that a step may take."""
        if self.fixed is not None:
            return self.fixed or float("inf")
        return max(FLOOR, PATIENCE * median(self.seconds or [0.0]))

    def long_limit(self) -> float:
        """Return the seconds that anything else may take."""
        return LONG * self.limit() if self.fixed is not None else max(LONG_FLOOR, LONG * self.limit())

    def _announce(self, what: str, seconds: float) -> None:
        if self.watch:
            self.watch.expect(what, seconds)


# -- in the supervisor -----------------------------------------------------------------------------------------------


def stack_file(logs: Path, rank: int) -> Path:
    """Return the file with the Python stacks of a rank that was late."""
    return logs / f"rank-{rank}.stack"


def main_thread(text: str) -> list[str]:
    """Return the frames of the main thread, innermost first, from what faulthandler wrote."""
    # faulthandler writes the newest thread first, so the main thread is last.
    last = text.rpartition("most recent call first):\n")[2]
    return [line.strip() for line in last.splitlines() if line.strip().startswith("File ")]


def waits_for_others(frames: list[str]) -> bool:
    """Return whether a stack shows a rank inside a collective operation, where it waits for the other ranks."""
    # autograd/graph.py: the collectives of a backward pass run in autograd's threads, for which the main thread waits
    # there. `read` in train/process/reading.py waits for the GPU, and so for the collectives of the step.
    places = ("torch/distributed/", "deepspeed/comm/", "autograd/graph.py", "neoxargs/train/process/reading.py")
    return any(place in frame for frame in frames[:2] for place in places)


class Lateness:
    """How a supervisor ends a rank that is late, or that waits for such a rank of the run.

    reason: why the rank is ended, "" as long as it is not.
    """

    def __init__(self, watch: Watch, logs: Path) -> None:
        self.watch, self.marker = watch, logs / LATE_FILE
        self.reason, self.kill_at, self.look_at = "", float("inf"), 0.0

    def check(self, pid: int) -> int:
        """Return the signal that the rank, process `pid`, is to get now; 0 for none."""
        now = time.monotonic()
        if self.reason:
            return signal.SIGKILL if now > self.kill_at else 0
        self.reason = self.watch.late() or self._another_is_late(now)
        if not self.reason:
            return 0
        self.reason += STATES.get(state(pid), "")
        self.kill_at = now + COLLECT
        self.watch.ask_for_record()
        with contextlib.suppress(OSError):
            self.marker.touch()
        return STACK_SIGNAL

    def _another_is_late(self, now: float) -> str:
        """Return a reason if another rank is late; looks every other second, because the folder may be on NFS."""
        if now < self.look_at:
            return ""
        self.look_at = now + 2
        return "waited for a rank that made no progress" if self.marker.exists() else ""
