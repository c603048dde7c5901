"""A lock of the system on a file, which lasts until the last process that has it ends, however that happens.

Child processes inherit it with the descriptor. It belongs to the open file (`F_OFD_SETLK`), not to a process, and any
process can ask for it without taking it. On NFS, the server keeps it, unless the file system is mounted without locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from pathlib import Path

#: struct flock of fcntl(2) on Linux: type, whence, start, length (0: the whole file), process.
_FLOCK = struct.Struct("@hhqqi4x")


def hold(path: Path) -> int:
    """Open a file and take a shared lock on it, if its file system has locks; return the descriptor.

    Child processes inherit it unless they are started with `close_fds`.
    """
    descriptor = os.open(path, os.O_RDONLY)
    with contextlib.suppress(AttributeError, OSError):  # not Linux; a file system without locks
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    os.set_inheritable(descriptor, True)
    return descriptor


def is_held(path: Path) -> bool | None:
    """Return whether a process has the lock; None if that cannot be found out."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return bool(_FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, question))[0] != fcntl.F_UNLCK)
    except (AttributeError, OSError):
        return None
    finally:
        os.close(descriptor)


def is_free_within(path: Path, seconds: float) -> bool:
    """Wait until no process has the lock; return whether that was so before the time was up."""
    deadline = time.monotonic() + seconds
    while (held := is_held(path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not held


def processes_with(path: Path) -> list[int]:
    """Return the other processes of this machine that have the file open, as far as this user may see that."""
    try:
        file = path.stat()
    except OSError:
        return []
    found = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # a process that has ended
            # By the name first: to look at other files may take for ever, if their file server is down.
            if path.name in os.readlink(descriptor) and os.path.samestat(descriptor.stat(), file):
                found.add(int(descriptor.parts[2]))
    return sorted(found - {os.getpid()})
