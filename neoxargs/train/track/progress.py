"""A progress bar at the bottom of the terminal; log lines scroll above it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neoxargs.train.track.tracker import Outcome, Run, Step, Tracker

if TYPE_CHECKING:
    from rich.console import Console


class ProgressBar(Tracker):
    """rich's progress bar: iterations, loss, speed, time left."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[speed]} tokens/s"),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=console, transient=True, refresh_per_second=4)

    def write(self, text: str) -> None:
        """Print a line above the bar."""
        # No markup: text of a model may contain brackets, which rich would take for styles.
        self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def on_start(self, run: Run) -> None:
        self.run = run
        self.task = self.bar.add_task("", total=run.iterations, completed=run.start, loss="-", speed="-")
        self.bar.start()

    def on_step(self, step: Step) -> None:
        speed = f"{step.batch * self.run.tokens_per_sample / step.seconds:,.0f}"
        self.bar.update(self.task, completed=step.iteration, loss=f"{step.loss:.4f}", speed=speed)

    def on_end(self, outcome: Outcome) -> None:
        self.bar.stop()
