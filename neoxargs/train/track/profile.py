"""Where the time of a few steps goes (`profile`): profile.txt to read, profile.json for Perfetto, both in `run_dir`."""

from __future__ import annotations

from typing import Any

from neoxargs.train.track.tracker import Outcome, Run, Step, Tracker


class Profile(Tracker):
    """torch's profiler on the main rank, over the steps after `first` up to `last`."""

    profiler: Any = None

    def __init__(self, first: int, last: int, rows: int = 40) -> None:
        self.first, self.last, self.rows = first, last, rows

    def on_start(self, run: Run) -> None:
        self.run = run
        if self.first <= run.start < self.last:
            self._begin()

    def on_step(self, step: Step) -> None:
        if step.iteration == self.last:
            self._finish()
        elif step.iteration == self.first:
            self._begin()

    def on_end(self, outcome: Outcome) -> None:
        self._finish()

    def _begin(self) -> None:
        from torch.profiler import profile

        self.profiler = profile()
        self.profiler.start()

    def _finish(self) -> None:
        if self.profiler is None:
            return
        self.profiler.stop()
        self.run.folder.mkdir(parents=True, exist_ok=True)
        device = "cuda" if any(event.device_type.name == "CUDA" for event in self.profiler.events()) else "cpu"
        table = self.profiler.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=self.rows)
        (self.run.folder / "profile.txt").write_text(table, encoding="utf-8")
        self.profiler.export_chrome_trace(str(self.run.folder / "profile.json"))
        self.profiler = None
