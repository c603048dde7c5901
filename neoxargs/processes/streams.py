"""Standard streams that are closed (`>&-`), and output that cannot be written (a full disk)."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

from neoxargs.base.problems import Problem, report
from neoxargs.processes import interrupts

#: Errors of a device, not of the program that writes to it.
OF_DEVICE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_closed() -> None:
    """Let a closed stream be /dev/null, here and in the programs that this process starts.

    Python sets it to None. The next file that is opened would get its number, and so what other programs print.
    """
    for number, (name, mode) in enumerate(STREAMS):
        if getattr(sys, name) is not None:
            continue
        null = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - as long as the process
        setattr(sys, name, null)
        try:
            os.fstat(number)  # mostly null itself, which got the lowest number that was free
        except OSError:
            os.dup2(null.fileno(), number)
        os.set_inheritable(number, True)


def is_unwritable(error: OSError) -> bool:
    """Whether an error can be one of what is printed: it is a device's, and names no file."""
    return error.errno in OF_DEVICE and error.filename is None


def unwritable(error: OSError) -> int:
    """Discard what is still to be printed, say why in one sentence on stderr, and return the exit code."""
    interrupts.reader_gone()
    with contextlib.suppress(OSError):  # stderr may be full too
        report([Problem(f"the output cannot be written: {(error.strerror or str(error)).lower()}", id="file-error")])
    return 1
