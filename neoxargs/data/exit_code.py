"""How a command ends: its exit code, and what is printed if it fails or is stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable

from neoxargs.base.problems import Problems
from neoxargs.processes import interrupts, streams


def exit_code_of(
    work: Callable[[], object],
    tell: Callable[[Problems], object] = lambda problems: print(problems, file=sys.stderr),
    stopped: Callable[[KeyboardInterrupt], int] = lambda stop: interrupts.report(stop=stop),
) -> int:
    """Run a command; return 0, 1 after printing problems with `tell`, 130 after Ctrl-C, or 143 after SIGTERM.

    stopped: prints what has become of the command's work after Ctrl-C or SIGTERM, and returns the exit code.
    """
    try:
        interrupts.accept()
        work()
        sys.stdout.flush()
    except Problems as problems:
        tell(problems)
        return 1
    except BrokenPipeError:  # `deepy data ... | head`
        return interrupts.reader_gone()
    except OSError as error:
        if streams.is_unwritable(error):
            return streams.unwritable(error)
        raise
    except KeyboardInterrupt as stop:
        return stopped(stop)
    return 0
