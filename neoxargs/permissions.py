"""Permissions of the files and folders that a run creates."""

from __future__ import annotations

import os
import stat


def never_writable_for_all() -> None:
    """Let this process and its children create nothing that every user of the machine can change.

    A checkpoint or a log folder that anyone can write to lets anyone replace weights. The rest of the umask is kept, so
    that the members of a group can share a run if the umask allows it.
    """
    mask = os.umask(stat.S_IRWXG | stat.S_IRWXO)
    os.umask(mask | stat.S_IWOTH)
