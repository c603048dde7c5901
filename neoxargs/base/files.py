"""How a run creates files: never writable by everyone, and complete or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple


def never_writable_for_all() -> None:
    """Let this process and its children create nothing that every user of the machine can change.

    A checkpoint or a log folder that anyone can write to lets anyone replace weights. The rest of the umask is kept, so
    that the members of a group can share a run if the umask allows it.
    """
    # The umask can only be read by setting it; meanwhile, another thread's files are at least not public.
    mask = os.umask(stat.S_IRWXG | stat.S_IRWXO)
    os.umask(mask | stat.S_IWOTH)


def replace_text(path: Path, text: str) -> None:
    """Write a text file, so that readers see the old or the new text, also if this process is killed meanwhile."""
    # Written beside and renamed, because a rename is atomic and a write is not.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except BaseException:  # also Ctrl-C and SIGTERM
        part.unlink(missing_ok=True)
        raise


def why_unwritable(folder: Path) -> str:
    """Return why an existing or future folder cannot be written to; empty if it can."""
    parent = nearest_existing(folder)
    if not parent.is_dir():
        return f"{parent} is a file, not a folder"
    if os.statvfs(parent).f_flag & os.ST_RDONLY:
        return f"the file system of {parent} is read-only"
    if not os.access(parent, os.W_OK | os.X_OK):
        return f"this user has no permission to write to {parent}"
    if max(len(os.fsencode(part)) for part in folder.absolute().parts) > os.pathconf(parent, "PC_NAME_MAX"):
        return f"a name in this path is longer than the file system of {parent} allows"
    # /proc and /sys are writable for root by their permissions, but files cannot be created there
    if not os.statvfs(parent).f_blocks:
        return f"files cannot be created in {parent}"
    return ""


def nearest_existing(folder: Path) -> Path:
    """Return the folder itself if it exists, otherwise the nearest parent that does."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))


class Text(NamedTuple):
    """A configuration file: its name for messages, and its text."""

    name: str
    text: str
