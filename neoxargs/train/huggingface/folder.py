"""What both verbs do alike: a folder that is there when it is whole, an end with a code, the names of weights."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from neoxargs.problems import Problem, Problems


@contextmanager
def written(folder: Path) -> Iterator[Path]:
    """A place to write what becomes `folder` at the end; nothing stays of it where that is not reached."""
    if folder.exists():
        what = f"--to ({folder}) already exists"
        hint = "name another folder, or remove this one"
        raise Problems(Problem(what, hint=hint, id="output-folder-exists"))
    part = folder.with_name(f".writing-{folder.name}")
    try:
        if part.exists():  # of a run that was killed
            shutil.rmtree(part)
        part.mkdir(parents=True)
    except OSError as error:
        raise Problems(
            Problem(f"--to ({folder}) cannot be written: {error.strerror}", id="output-folder-unwritable")
        ) from error
    try:
        yield part
        part.rename(folder)
    except OSError as error:
        raise Problems(
            Problem(f"--to ({folder}) cannot be written: {error.strerror or error}", id="output-folder-unwritable")
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def finished(work: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> int:
    """The exit code; 1 after printing what is wrong."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a terminated one tidies up
    try:
        work(options)
    except Problems as problems:
        print(problems, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def key(module: str, kind: str) -> str:
    """The name of a module's weight or bias in a checkpoint of ours."""
    return f"{module}.{'table' if (module, kind) == ('positions', 'weight') else kind}"
