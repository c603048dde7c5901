"""Profiles of time (`profile`) and memory (`memory_profiling`).

`profile` writes profile.txt (a table) and profile.json (for Perfetto) to `run_dir`. `memory_profiling` records every
allocation, for PyTorch's memory viewer on a GPU and for Perfetto on a CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neoxargs.base.files import replace_text
from neoxargs.train.track.tracker import Outcome, Run, Step, Tracker


class Profile(Tracker):
    """torch's profiler on the main rank, for the steps after `first` up to and including `last`.

    rows: number of rows in profile.txt.
    """

    profiler: Any = None

    def __init__(self, first: int, last: int, rows: int = 40) -> None:
        self.first, self.last, self.rows = first, last, rows

    def on_start(self, run: Run) -> None:
        self.run = run
        # A resumed run may begin within the steps to profile.
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
        replace_text(self.run.folder / "profile.txt", table)
        self.profiler.export_chrome_trace(str(self.run.folder / "profile.json"))
        self.profiler = None


class MemoryHistory(Tracker):
    """Records the main rank's allocations.

    On a GPU, the last `MAX_ENTRIES` of the run; on a CPU, those of the steps after `first` up to and including `last`.
    path: the file, if it has a suffix, otherwise the folder of a file with GPT-NeoX's name. None means `run_dir`.
    """

    MAX_ENTRIES = 100_000
    profiler: Any = None

    def __init__(self, path: str | None, on_gpu: bool, first: int, last: int) -> None:
        self.path, self.on_gpu, self.first, self.last = path, on_gpu, first, last

    def on_start(self, run: Run) -> None:
        self.run = run
        if self.on_gpu:
            import torch

            torch.cuda.memory._record_memory_history(max_entries=self.MAX_ENTRIES)
        elif self.first <= run.start < self.last:
            self._begin()

    def on_step(self, step: Step) -> None:
        if self.on_gpu:
            return
        if step.iteration == self.last:
            self._finish()
        elif step.iteration == self.first:
            self._begin()

    def on_end(self, outcome: Outcome) -> None:
        if self.on_gpu:
            import torch

            torch.cuda.memory._dump_snapshot(str(self._file("mem_snapshot.pickle")))
            # enabled=None turns the recording off.
            torch.cuda.memory._record_memory_history(enabled=None)
        self._finish()

    def _begin(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        self.profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self.profiler.start()

    def _finish(self) -> None:
        if self.profiler is not None:
            self.profiler.stop()
            self.profiler.export_chrome_trace(str(self._file("mem_snapshot.json")))
            self.profiler = None

    def _file(self, name: str) -> Path:
        path = Path(self.path) if self.path else self.run.folder
        file = path if path.suffix else path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        return file
