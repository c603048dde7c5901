"""Tells the trackers of a run of its events, also where a disk is full or a folder has vanished.

A folder that the run writes to, and that is removed, renamed or unmounted during the run, is created again. The run
could end instead, but then everything since its last checkpoint would be lost, and perhaps that checkpoint too.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from neoxargs.base.problems import Problem, Problems
from neoxargs.train.process.report import warn
from neoxargs.train.track.tracker import Tracker

#: Errors of a disk that is full, read-only or broken, or of a folder that has vanished.
DISK_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOENT,
    errno.ENOTDIR, errno.EEXIST,
)  # fmt: skip


class RunFolders:
    """Folders, by the parameters that name them. One that does not exist yet does not count as vanished."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self.folders = folders
        self.existing: set[str] = set()

    def restore(self) -> list[Problem]:
        """Create the folders that have vanished, and return a warning for each; raises OSError if that fails."""
        vanished = [name for name, path in self.folders.items() if not path.is_dir()]
        self.existing |= set(self.folders) - set(vanished)
        missing = [name for name in vanished if name in self.existing]
        for name in missing:
            self.folders[name].mkdir(parents=True)
        return [_vanished(name, self.folders[name]) for name in missing]


def _vanished(name: str, folder: Path) -> Problem:
    what = f"{name} ({folder}) was removed, renamed or unmounted while the run was writing to it"
    what += "; it was created again, without the files that were in it"
    hint = "if it was unmounted, stop the run and mount it again: until then, new files go to the disk of the mount "
    hint += "point"
    return Problem(what, hint=hint, id="run-folder-vanished", about=(name,)).as_warning()


class Trackers:
    """The trackers of a run; there are none on any rank but the main one.

    run_dir: the folder of what they write. stops: whether a file that cannot be written ends the run; otherwise it is
    warned of once. folders: what is created again if it vanishes.
    """

    def __init__(
        self, each: list[Tracker], run_dir: Path = Path(), stops: bool = True, folders: RunFolders | None = None
    ) -> None:
        self.each, self.run_dir, self.folders, self.stops = each, run_dir, folders or RunFolders({}), stops
        self.warned: set[Problem] = set()

    def tell(self, event: Callable[[Tracker], None], last_first: bool = False) -> None:
        """Tell all trackers of an event. Raises Problems."""
        self.restore_folders()
        for tracker in reversed(self.each) if last_first else self.each:
            with self._writing():
                event(tracker)

    def warn(self, problems: Sequence[Problem]) -> None:
        """Print warnings on the rank that has trackers."""
        if self.each:
            warn(problems)

    def restore_folders(self) -> None:
        """Create folders that have vanished again, and warn of it. Raises Problems."""
        with self._writing():
            warn(self.folders.restore())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Within this, a file that cannot be written is a problem, or a warning."""
        try:
            yield
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            file, reason = error.filename or "a metrics or report file", (error.strerror or str(error)).lower()
            what = f"run_dir ({self.run_dir}): {file} cannot be written: {reason}"
            hint = "free up space on this disk, or set run_dir to a folder that this user can write to"
            problem = Problem(what, hint=hint, id="run-folder-not-written", about=("run_dir", "on_save_error"))
            if self.stops:
                raise Problems(problem) from error
            if problem not in self.warned:
                self.warned.add(problem)
                warn([problem])
