"""Files that are written whole or not at all, and what would change in them."""

from __future__ import annotations

import difflib
import errno
import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from neoxargs.problems import Place, Problem, Problems
from neoxargs.resolve import Text

BOM = b"\xef\xbb\xbf"


def diff(before: Text, after: Text) -> str:
    """A unified diff, as `patch` reads it; empty where nothing changes."""
    lines = difflib.unified_diff(_lines(before.text), _lines(after.text), before.name, after.name, n=2)
    return "".join(_ended(line) for line in lines)


def _lines(text: str) -> list[str]:
    """As `patch` counts them; YAML and Python know other line breaks too."""
    return list(io.StringIO(text, newline="\n"))


def _ended(line: str) -> str:
    return line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


def changed(before: Sequence[Text], after: Sequence[Text]) -> Iterator[tuple[Text, Text]]:
    """The files that differ, as they were and as they are."""
    return ((old, new) for old, new in zip(before, after, strict=True) if old.text != new.text)


def write_all(texts: Sequence[Text], *, replace: bool = True) -> None:
    """Write every file beside itself first, and move them into place only when all of them are written.

    Raises Problems, with every file as it was, if one cannot be written; `replace=False` refuses to overwrite. A pipe
    or /dev/stdout takes what is written to it; a file moved to its name would replace it.
    """
    files = [text for text in texts if not _is_stream(text.name)]
    for name, _ in files:
        if not replace and os.path.exists(name):
            hint = "name another, or add --write"
            raise Problems([Problem("this file exists", Place(name, 0, 0), hint, id="output-file-exists")])
    _replace(files)
    for name, text in texts:
        if _is_stream(name):
            with _refusal_as_problem(name), open(name, "a", encoding="utf-8") as stream:
                stream.write(text)


def _is_stream(name: str) -> bool:
    is_other = os.path.exists(name) and not os.path.isfile(name) and not os.path.isdir(name)
    return is_other or os.path.dirname(name) == "/dev"


def _replace(files: Sequence[Text]) -> None:
    before: dict[str, bytes | None] = {}
    ready: dict[str, str] = {}
    moved: list[str] = []
    try:
        for name, text in files:
            with _refusal_as_problem(name):
                before[name] = _content(name)
                ready[name] = _beside(name, _byte_order_mark(before[name]) + text.encode())
        for name, temporary in ready.items():
            with _refusal_as_problem(name):
                os.replace(temporary, os.path.realpath(name))
            moved.append(name)
    except BaseException:  # Ctrl-C too
        for name in moved:
            _put_back(name, before[name])
        raise
    finally:
        for name in ready.keys() - set(moved):
            os.unlink(ready[name])


@contextmanager
def _refusal_as_problem(name: str) -> Iterator[None]:
    """What the system refuses, as a problem of the file."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        what = f"this cannot be written: {reason}"
        raise Problems([Problem(what, Place(name, 0, 0), id="output-file-unwritable")]) from None


def _content(name: str) -> bytes | None:
    """What is in the file (None: there is none); OSError where it must not be changed."""
    if not os.path.exists(name):
        return None
    if not os.access(name, os.W_OK):  # a file beside it could take its place all the same
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with open(name, "rb") as file:
        return file.read()


def _beside(name: str, content: bytes) -> str:
    """The new content in a file of its own, with the owner and the permissions of the old one."""
    target = os.path.realpath(name)
    handle, temporary = tempfile.mkstemp(prefix=".deepy-", dir=os.path.dirname(target))
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _as_before(target, temporary)
    except OSError:
        os.unlink(temporary)
        raise
    return temporary


def _as_before(target: str, temporary: str) -> None:
    if not os.path.exists(target):
        os.chmod(temporary, 0o666 & ~_umask())
        return
    old = os.stat(target)
    with suppress(PermissionError):  # only root gives files away
        os.chown(temporary, old.st_uid, old.st_gid)
    os.chmod(temporary, old.st_mode & 0o777)


def _put_back(name: str, content: bytes | None) -> None:
    if content is None:
        os.unlink(name)
    else:
        os.replace(_beside(name, content), os.path.realpath(name))


def _byte_order_mark(content: bytes | None) -> bytes:
    """The byte order mark that some editors begin a file with, where the old file has one."""
    return BOM if content and content.startswith(BOM) else b""


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
