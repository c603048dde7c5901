"""The folders that a run writes to: one that is removed, renamed or unmounted during the run is created again.

The run could end instead, but then everything since its last checkpoint would be lost, and perhaps that checkpoint too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from neoxargs.base.problems import Problem


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
    hint = (
        "if it was unmounted, stop the run and mount it again: until then, new files go to the disk of the mount point"
    )
    return Problem(what, hint=hint, id="run-folder-vanished", about=(name,)).as_warning()
