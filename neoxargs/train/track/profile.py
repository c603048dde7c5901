"""Profiles of time (`profile`) and memory (`memory_profiling`).

`profile` writes profile.txt (a table) and profile.json (for Perfetto) to `run_dir`. `memory_profiling` records every
allocation, for PyTorch's memory viewer on a GPU and for Perfetto on a CPU.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from neoxargs.base.files import replace_text
from neoxargs.train.track.tracker import Outcome, Run, Step, Tracker


class Profile(Tracker):
    """torch's profiler on the main rank, for the steps after `first` up to and including `last`.

    One object for both kinds, because a process can have only one profiler of torch at a time.

    times: write profile.txt and profile.json. memory: write the allocations on a CPU to `path`, which is as that of
    `MemoryHistory`. rows: number of rows in profile.txt.
    """

    profiler: Any = None

    def __init__(
        self, first: int, last: int, times: bool = True, memory: bool = False, path: str | None = None, rows: int = 40
    ) -> None:
        self.first, self.last, self.times, self.memory = first, last, times, memory
        self.path, self.rows = path, rows

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

        self.profiler = profile(profile_memory=self.memory)
        self.profiler.start()

    def _finish(self) -> None:
        if self.profiler is None:
            return
        self.profiler.stop()
        if self.times:
            device = "cuda" if any(event.device_type.name == "CUDA" for event in self.profiler.events()) else "cpu"
            table = self.profiler.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=self.rows)
            self.run.folder.mkdir(parents=True, exist_ok=True)
            replace_text(self.run.folder / "profile.txt", table)
        files = [self.run.folder / "profile.json"] * self.times
        files += [memory_file(self.path, self.run.folder, "mem_snapshot.json")] * self.memory
        self.profiler.export_chrome_trace(str(files[0]))  # which torch does once
        for copy in files[1:]:
            shutil.copyfile(files[0], copy)
        self.profiler = None


class MemoryHistory(Tracker):
    """Records the last `MAX_ENTRIES` allocations on the main rank's GPU.

    path: the file, if it has a suffix, otherwise the folder of a file with GPT-NeoX's name. None means `run_dir`.
    """

    MAX_ENTRIES = 100_000

    def __init__(self, path: str | None) -> None:
        self.path = path

    def on_start(self, run: Run) -> None:
        self.run = run
        torch.cuda.memory._record_memory_history(max_entries=self.MAX_ENTRIES)

    def on_end(self, outcome: Outcome) -> None:
        torch.cuda.memory._dump_snapshot(str(memory_file(self.path, self.run.folder, "mem_snapshot.pickle")))
        # enabled=None turns the recording off.
        torch.cuda.memory._record_memory_history(enabled=None)


def memory_file(path: str | None, folder: Path, name: str) -> Path:
    """Return `path` if it has a suffix, otherwise the file of this name in it or in the run's folder, which is made."""
    chosen = Path(path) if path else folder
    file = chosen if chosen.suffix else chosen / name
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
