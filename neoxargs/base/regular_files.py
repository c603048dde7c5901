"""Read files that a configuration names: never a pipe or a device, and never endlessly.

A configuration may be a stranger's, and `deepy check` of it must end.
"""

from __future__ import annotations

import errno
import os
import stat

#: The most bytes that are read of a file of prompts or of shapes.
MAX_READ = 1 << 28


def is_special(path: str | os.PathLike[str]) -> bool:
    """Return whether a path exists and is neither a regular file nor a folder: a pipe, a device or a socket."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def read_regular(path: str | os.PathLike[str], most: int = MAX_READ) -> bytes:
    """Return the content of a regular file; raises OSError for any other, and for one of more than `most` bytes.

    A file whose size is 0, as of those in /proc, is empty: reading it could wait forever.
    """
    size = os.stat(path).st_size
    if is_special(path):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", os.fspath(path))
    if size > most:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes; at most {most:,} are read", os.fspath(path))
    with open(path, "rb") as file:
        return file.read(size)
