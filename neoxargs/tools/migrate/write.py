"""Files that are written whole or not at all, and what would change in them."""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Iterator, Sequence

from neoxargs.problems import Place, Problem, Problems
from neoxargs.resolve import Text

BOM = b"\xef\xbb\xbf"


def diff(before: Text, after: Text) -> str:
    """A unified diff, as `patch` reads it; empty where nothing changes."""
    lines = difflib.unified_diff(
        before.text.splitlines(keepends=True), after.text.splitlines(keepends=True), before.name, after.name, n=2
    )
    return "".join(_ended(line) for line in lines)


def _ended(line: str) -> str:
    return line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


def write_all(texts: Sequence[Text], *, replace: bool = True) -> None:
    """Write every file beside itself first, and move them into place only when all of them are written.

    Raises Problems, with every file as it was, if one cannot be written; `replace=False` refuses to overwrite.
    """
    ready: list[tuple[str, str]] = []
    try:
        for text in texts:
            target = os.path.realpath(text.name)
            if not replace and os.path.exists(target):
                raise Problems([Problem("this file exists", Place(text.name, 0, 0), "name another, or add --write")])
            ready.append((_beside(target, text), target))
        while ready:
            os.replace(*ready[0])
            del ready[0]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Problems([Problem(f"this cannot be written: {reason}", Place(text.name, 0, 0))]) from None
    finally:
        for temporary, _ in ready:
            os.unlink(temporary)


def _beside(target: str, text: Text) -> str:
    """The new content in a file of its own, with the permissions of the old one."""
    handle, temporary = tempfile.mkstemp(prefix=".deepy-", dir=os.path.dirname(target))
    try:
        with open(handle, "wb") as file:
            file.write(_mark(target) + text.text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, os.stat(target).st_mode & 0o777 if os.path.exists(target) else 0o666 & ~_umask())
    except OSError:
        os.unlink(temporary)
        raise
    return temporary


def _mark(target: str) -> bytes:
    """The byte order mark that some editors begin a file with, where the old file has one."""
    if not os.path.exists(target):
        return b""
    with open(target, "rb") as file:
        return BOM if file.read(3) == BOM else b""


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def changed(before: Sequence[Text], after: Sequence[Text]) -> Iterator[tuple[Text, Text]]:
    """The files that differ, as they were and as they are."""
    return ((old, new) for old, new in zip(before, after, strict=True) if old.text != new.text)
