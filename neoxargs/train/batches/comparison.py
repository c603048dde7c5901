"""Comparison of a run's token files with their checksums, in the background on one rank, while the run trains.

Only one rank reads the files: of all ranks with a shared file system, otherwise of each machine. Its problem ends the
run, as that of any rank does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.text import format_bytes
from neoxargs.files.token_files import checksums, index, labels
from neoxargs.files.token_files.index import IGNORED

#: How long the start waits at most: small files are compared before the first step.
A_MOMENT = 2.0


@dataclass
class Comparison:
    """The comparison of token files. prefixes: of all files of the run. label_files: those of them that have labels,
    with their token files. reward_files: those that have no token ids. rows: of the embedding."""

    prefixes: Sequence[str] = ()
    label_files: dict[str, str] = field(default_factory=dict)
    reward_files: Container[str] = ()
    rows: int = 0
    problems: list[Problem] = field(default_factory=list)
    size: int = 0
    """Bytes of all files."""
    read: int = 0
    """Bytes of those that were read, or had been compared before."""
    started: bool = False
    ended: bool = False

    def start(self) -> Comparison:
        """Begin, and wait a moment. Raises Problems if something is found by then."""
        self.size = sum(os.path.getsize(name + suffix) for name in self.prefixes for suffix in checksums.SUFFIXES)
        self.started = True
        # A daemon: a run that ends, or fails, does not wait for it.
        thread = threading.Thread(target=self._run, name="comparison of token files", daemon=True)
        thread.start()
        thread.join(A_MOMENT)
        self.check()
        return self

    def check(self) -> None:
        """Raise Problems if a file has turned out to be damaged."""
        if self.problems:
            raise Problems(list(self.problems))

    def end(self) -> None:
        """Print what has not been compared, if anything; raises Problems if a file has turned out to be damaged."""
        self.check()
        if self.started and not self.ended:
            left = f"{format_bytes(self.size - self.read)} of {format_bytes(self.size)}"
            again = f"deepy data --verify {' '.join(self.prefixes)}"
            print(
                f"{left} of the token files were not compared with their checksums; to compare them: {again}",
                flush=True,
            )

    def _run(self) -> None:
        with suppress(OSError):  # Linux gives each thread a priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        try:
            for outcome in checksums.examine(self.prefixes, read=self._count):
                self._take(outcome)
            for own, prefix in self.label_files.items():
                self._compare_labels(prefix, own)
        except OSError as error:
            what = f"{error.filename} cannot be read: {(error.strerror or str(error)).lower()}"
            self.problems.append(Problem(what, id="data-file-damaged", about=("data_path",)))
        self.ended = True

    def _count(self, size: int) -> None:
        self.read += size

    def _take(self, outcome: checksums.Outcome) -> None:
        if outcome.problem:
            self.problems.append(outcome.problem)
        elif outcome.file.endswith(".bin"):
            prefix = outcome.file.removesuffix(".bin")
            least = IGNORED if prefix in self.label_files else 0
            is_text = prefix not in self.reward_files
            if is_text and (problem := checksums.first_beyond(prefix, outcome.record.ids, self.rows, least)):
                self.problems.append(problem)

    def _compare_labels(self, prefix: str, own: str) -> None:
        text, label = index.read(prefix), index.read(own)
        if text and label and (found := labels.mismatch(text, label)):
            hint, about = labels.HINTS[found.kind], ("train_label_data_paths", "train_data_paths")
            self.problems.append(Problem(f"{own} {found.text}", hint=hint, id="labels-do-not-match", about=about))
