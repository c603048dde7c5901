"""Add checkpoints to a folder and remove them. A killed run never leaves a partial checkpoint that looks complete.

    .writing-global_step200/     being written, or left by a killed run
    .removing-global_step100/    being removed, or left by a killed run

A checkpoint is written under a hidden name and renamed once it is complete. Its files.json lists the size and the
checksum of every file, which reveal later damage such as an interrupted copy or a failing disk.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from neoxargs.files.checkpoints.checksums import Digest, digest_of
from neoxargs.files.checkpoints.folder import (
    REMOVING,
    WRITING,
    delete,
    hide,
    newest_first,
    outdated,
    point_latest_at,
    remove,
    tag,
    write_digests,
)


def begin(folder: Path, iteration: int) -> Path:
    """Return an empty hidden folder to write this checkpoint to; remove what killed runs left in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in (*folder.glob(f"{WRITING}*"), *folder.glob(f"{REMOVING}*")):
        with contextlib.suppress(OSError):  # what cannot be deleted is only in the way if it has this name
            delete(leftover)
    part = folder / (WRITING + tag(iteration))
    part.mkdir()
    return part


def commit(folder: Path, iteration: int, known: Mapping[str, Digest] | None = None) -> Path:
    """Make the checkpoint that `begin` started visible, and the newest one; return its folder.

    known: the digests of files that were computed while they were written; other files are read. Raises OSError if
    a file does not have the size that was written.
    A checkpoint of the same iteration, left by an earlier run, is removed after the new one has taken its place.
    """
    part, final, known = folder / (WRITING + tag(iteration)), folder / tag(iteration), known or {}
    files = {str(file.relative_to(part)): file for file in part.rglob("*") if file.is_file()}
    for name, digest in known.items():
        size = files[name].stat().st_size if name in files else 0
        if size != digest.size:
            raise OSError(f"{part / name} has {size} bytes, but {digest.size} were written")
    write_digests(part, {name: known.get(name) or digest_of(file) for name, file in files.items()})
    # A folder cannot be renamed onto another one. A run that is killed between the two renames loses both, but no
    # checkpoint of another iteration.
    replaced = hide(final) if os.path.lexists(final) else None
    part.rename(final)
    # Last, so that `latest` never names a folder that is not there.
    point_latest_at(final)
    if replaced:
        delete(replaced)
    return final


class Removal:
    """Removes old checkpoints in a thread: that takes long if they are large, and all ranks would wait for it."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None

    def prune(self, folder: Path, keep: int, best: int = 0) -> None:
        """Begin to remove all but the `keep` newest and the `best` best checkpoints.

        The one that was just saved is the newest.
        """
        self.wait()
        found = newest_first(folder)
        if old := outdated(found, keep, best):
            self.thread = threading.Thread(target=_remove, args=(old, found[0]), name="removal", daemon=True)
            self.thread.start()

    def wait(self) -> None:
        """Wait until they are removed. What cannot be removed is left to the next time, with a warning."""
        if self.thread:
            self.thread.join()


def _remove(old: list[Path], newest: Path) -> None:
    """Remove checkpoints once the newest one is on the disk: a power failure must leave one of them."""
    try:
        # Files, folder, and the parent with the entry of the renamed folder.
        for path in (newest.parent, newest, *newest.rglob("*")):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        for checkpoint in old:
            remove(checkpoint)
    except OSError as error:
        print(f"warning: old checkpoints in {newest.parent} cannot be removed: {error}", flush=True)
