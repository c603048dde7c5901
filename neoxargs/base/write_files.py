"""Write several files, all of them or none, and show the changes as a unified diff."""

from __future__ import annotations

import difflib
import errno
import io
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from neoxargs.base.files import Text, replacing_all, why_unwritable
from neoxargs.base.problems import Place, Problem, Problems, without_secrets

BOM = b"\xef\xbb\xbf"


def diff(before: Text, after: Text) -> str:
    """Return a unified diff, empty if nothing changes; `patch` accepts it unless it has secrets, which are masked."""
    lines = difflib.unified_diff(_lines(before.text), _lines(after.text), before.name, after.name, n=2)
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return without_secrets(text)


def _lines(text: str) -> list[str]:
    """Split at line feeds only, as `patch` does; `str.splitlines` and YAML also split at other characters."""
    return list(io.StringIO(text, newline="\n"))


def changed_files(before: Sequence[Text], after: Sequence[Text]) -> Iterator[tuple[Text, Text]]:
    """Yield the old and the new text of each file that differs."""
    return ((old, new) for old, new in zip(before, after, strict=True) if old.text != new.text)


def write_all(texts: Sequence[Text], *, replace: bool = True) -> None:
    """Write every file to a temporary file beside it, then move all of them into place.

    replace: False refuses to overwrite an existing file. Raises Problems if a file cannot be written; all files then
    have their old content.
    """
    # Pipes and devices such as /dev/stdout are written to directly: os.replace would put a file in their place.
    files = [text for text in texts if not _is_stream(text.name)]
    for name, _ in files:
        if not replace and os.path.exists(name):
            what, hint = "this file already exists", "use a different name, or add --write to overwrite this file"
            raise Problems([Problem(what, Place(name, 0, 0), hint, id="output-file-exists")])
    _replace(files)
    for name, text in texts:
        if _is_stream(name):
            with os_error_as_problem(name), open(name, "a", encoding="utf-8") as stream:
                stream.write(text)


def require_writable(name: str) -> None:
    """Raise Problems if a file could not be written, before the work whose result would be lost."""
    target = Path(os.path.realpath(name))
    if _is_stream(name):
        return
    with os_error_as_problem(name):
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not target.parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"there is no folder {os.path.dirname(name)}")
        _byte_order_mark(target)
        if why := why_unwritable(target.parent):
            raise PermissionError(errno.EACCES, why)


def require_replaceable(name: str | None, beginning: str = "") -> None:
    """Raise Problems if a file could not be written, or if its content would be lost.

    beginning: what files begin with that may be replaced.
    """
    if not name:
        return
    require_writable(name)
    if not os.path.isfile(name):
        return
    with os_error_as_problem(name), open(name, encoding="utf-8", errors="replace") as file:
        if beginning and file.read(len(beginning)).lower() == beginning.lower():
            return
    what, hint = "this file already exists", "use a different name, or remove the file first"
    raise Problems([Problem(what, Place(name, 0, 0), hint, id="output-file-exists")])


def _is_stream(name: str) -> bool:
    is_other = os.path.exists(name) and not os.path.isfile(name) and not os.path.isdir(name)
    return is_other or os.path.dirname(name) == "/dev"


def _replace(files: Sequence[Text]) -> None:
    # The targets of symbolic links, which are kept.
    targets = [Path(os.path.realpath(name)) for name, _ in files]
    try:
        with replacing_all(targets) as parts:
            for (name, text), target, part in zip(files, targets, parts, strict=True):
                with os_error_as_problem(name):
                    _write(part, _byte_order_mark(target) + text.encode())
                    _copy_owner_and_mode(target, part)
    except OSError as error:  # of the renames
        names = {str(target): name for (name, _), target in zip(files, targets, strict=True)}
        with os_error_as_problem(names.get(error.filename2, files[0].name)):
            raise


@contextmanager
def os_error_as_problem(name: str) -> Iterator[None]:
    """Within this, raise Problems if a file cannot be written."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        what = f"this file cannot be written: {reason}"
        raise Problems([Problem(what, Place(name, 0, 0), id="output-file-unwritable")]) from None


def _byte_order_mark(target: Path) -> bytes:
    """Return the byte order mark of an existing file, which some Windows editors write; raise OSError if read-only."""
    if not target.exists():
        return b""
    # os.replace needs write permission for the folder only, so it would replace a read-only file; root writes to all.
    if not target.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EACCES, "it is read-only (chmod u+w allows it)")
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with open(target, "rb") as file:
        return BOM if file.read(len(BOM)) == BOM else b""


def _write(part: Path, content: bytes) -> None:
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _copy_owner_and_mode(target: Path, part: Path) -> None:
    if not target.exists():
        return
    old = target.stat()
    with suppress(PermissionError):  # only root may change the owner of a file
        os.chown(part, old.st_uid, old.st_gid)
    os.chmod(part, old.st_mode & 0o777)
