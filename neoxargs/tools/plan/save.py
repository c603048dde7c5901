"""The page goes to its file whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from neoxargs.problems import Place, Problem, Problems
from neoxargs.resolve import Text
from neoxargs.tools.migrate.write import write_all


def save(page: str, name: str) -> None:
    """Raises Problems where it cannot be written; what was there before then stays as it was."""
    if _is_stream(Path(name)):
        _send(page, name)
    else:
        write_all([Text(name, page)])


def _is_stream(path: Path) -> bool:
    """A pipe or /dev/stdout takes what is written to it; a file moved to its name would replace it."""
    return path.parent == Path("/dev") or (path.exists() and not path.is_file() and not path.is_dir())


def _send(page: str, name: str) -> None:
    try:
        with open(name, "w", encoding="utf-8") as stream:
            stream.write(page)
    except OSError as error:
        reason = (error.strerror or os.strerror(error.errno or 0)).lower()
        raise Problems([Problem(f"this cannot be written: {reason}", Place(name, 0, 0))]) from None
