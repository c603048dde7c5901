"""Stopping a run between two steps, on all ranks at the same one: by a signal, or by a file."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import torch
import torch.distributed

from neoxargs.train.process.collectives import all_reduce


class StopRequest:
    """Request to stop by a signal or the stop file: finish the step, save, exit with code 0, as Megatron does.

    The signals are SIGTERM, Ctrl-C, and SIGHUP of a terminal that closes, which `nohup` lets a run ignore.

    Signals reach the ranks at different steps, so every step begins an all-reduce of the received signal. It overlaps
    with the computation of the step. SIGTERM may arrive more than once, because a launcher forwards a signal that its
    process group has already received. A second Ctrl-C ends the process immediately.

    file: with `adlr_autoresume`, the file whose creation stops the run. every: in how many steps it is looked for once.
    busy: after `answer`, whether any rank wrote a checkpoint in the background when the step began. group: all ranks.
    """

    #: Stands for the stop file in the all-reduce; larger than any signal's number.
    BY_FILE = 1000

    def __init__(
        self,
        device: torch.device,
        file: Path | None = None,
        every: int = 1,
        group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        self.received, self.file, self.every, self.group = "", file, every, group
        self.flag, self.busy = torch.zeros(2, dtype=torch.int32, device=device), False

    def __enter__(self) -> StopRequest:
        handled = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            handled.append(signal.SIGHUP)
        self.before = {number: signal.signal(number, self._receive) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def ask(self, iteration: int, busy: bool = False) -> None:
        """Begin the all-reduce of this rank's request. busy: whether this rank writes a checkpoint."""
        number = signal.Signals[self.received].value if self.received else 0
        found = self.file and iteration % self.every == 0 and self.file.exists()
        # Filled, not assigned: a number that is assigned to an element waits for the device.
        self.flag[0].fill_(self.BY_FILE if found else number)
        self.flag[1].fill_(int(busy))
        self.work = all_reduce(self.flag, torch.distributed.ReduceOp.MAX, self.group, async_op=True)

    def answer(self) -> str:
        """Return the reason to stop that any rank had before this step, or "" if there is none."""
        self.work.wait()
        number, busy = self.flag.tolist()
        self.busy = bool(busy)
        if number == self.BY_FILE and self.file:
            self.file.unlink(missing_ok=True)  # or the run that continues would stop immediately
            return f"found the stop file {self.file}"
        return signal.Signals(number).name if number else ""

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
