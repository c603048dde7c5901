"""Stopping a run between two steps, on all ranks at the same one: by a signal, or by a file."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType


class StopRequest:
    """Request to stop by a signal or the stop file: finish the step, save, exit with code 0, as Megatron does.

    The signals are SIGTERM, Ctrl-C, and SIGHUP of a terminal that closes, which `nohup` lets a run ignore.

    Signals reach the ranks at different steps, so in every step they tell each other which one they have received; what
    they then know is the same on all of them. SIGTERM may arrive more than once, because a launcher forwards a signal
    that its process group has already received. A second Ctrl-C ends the process immediately.

    file: with `adlr_autoresume`, the file whose creation stops the run. every: in how many steps it is looked for once.
    """

    #: Stands for the stop file among the signals' numbers; larger than any.
    BY_FILE = 1000

    def __init__(self, file: Path | None = None, every: int = 1) -> None:
        self.received, self.file, self.every = "", file, every

    def __enter__(self) -> StopRequest:
        handled = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            handled.append(signal.SIGHUP)
        self.before = {number: signal.signal(number, self._receive) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def tell(self, iteration: int, busy: bool = False) -> tuple[int, int]:
        """Return what this rank tells the others in a step: its request, and whether it writes a checkpoint."""
        found = self.file and iteration % self.every == 0 and self.file.exists()
        number = signal.Signals[self.received].value if self.received else 0
        return self.BY_FILE if found else number, int(busy)

    def answer(self, told: Sequence[int]) -> tuple[str, bool]:
        """Return the reason to stop that any rank had, "" if there is none, and whether any wrote a checkpoint.

        told: the largest of each number that the ranks told in a step.
        """
        number, busy = told
        if number == self.BY_FILE and self.file:
            self.file.unlink(missing_ok=True)  # or the run that continues would stop immediately
            return f"found the stop file {self.file}", bool(busy)
        return (signal.Signals(number).name if number else ""), bool(busy)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
