"""Progress of a job over bytes: a bar on a terminal, otherwise a line every 10 s."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

#: Seconds between two lines without a terminal; a shorter job prints none.
INTERVAL = 10.0


class Meter:
    """`with Meter(total, "tokenising") as meter: meter.advance(bytes)`."""

    def __init__(self, total: int, title: str) -> None:
        self.total, self.title, self.done = total, title, 0
        self._started = self._last_line = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Meter:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
            self._bar.add_task(self.title, total=self.total)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def advance(self, size: int) -> None:
        """Count `size` more bytes as done, and show the progress if it is time to."""
        self.done += size
        if self._bar:
            self._bar.advance(self._bar.task_ids[0], size)
        elif time.monotonic() - self._last_line >= INTERVAL:
            self._last_line = time.monotonic()
            rate = self.done / (self._last_line - self._started)
            left = max(0, self.total - self.done) / rate
            print(f"{self.title}: {self.done / self.total:.0%}, {rate / 1e6:.1f} MB/s, {left:.0f} s left", flush=True)


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
