"""How a run creates files: never writable by everyone, and complete or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path


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
