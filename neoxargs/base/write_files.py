"""Write several files, all of them or none, and show the changes as a unified diff."""

from __future__ import annotations

import difflib
import errno
import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems

BOM = b"\xef\xbb\xbf"


def diff(before: Text, after: Text) -> str:
    """Return a unified diff that `patch` accepts; empty if nothing changes."""
    lines = difflib.unified_diff(_lines(before.text), _lines(after.text), before.name, after.name, n=2)
    return "".join(_with_line_end(line) for line in lines)


def _lines(text: str) -> list[str]:
    """Split at line feeds only, as `patch` does; `str.splitlines` and YAML also split at other characters."""
    return list(io.StringIO(text, newline="\n"))


def _with_line_end(line: str) -> str:
    return line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


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


def require_replaceable(name: str | None, beginning: str = "") -> None:
    """Raise Problems if a file exists whose content would be lost. beginning: what files begin with that may be."""
    if not name or not os.path.isfile(name):
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
    before: dict[str, bytes | None] = {}
    ready: dict[str, str] = {}
    moved: list[str] = []
    try:
        for name, text in files:
            with os_error_as_problem(name):
                before[name] = _content(name)
                ready[name] = _write_beside(name, _byte_order_mark(before[name]) + text.encode())
        for name, temporary in ready.items():
            with os_error_as_problem(name):
                os.replace(temporary, os.path.realpath(name))
            moved.append(name)
    except BaseException:  # includes KeyboardInterrupt
        for name in moved:
            _restore(name, before[name])
        raise
    finally:
        for name in ready.keys() - set(moved):
            os.unlink(ready[name])


@contextmanager
def os_error_as_problem(name: str) -> Iterator[None]:
    """Within this, raise Problems if a file cannot be written."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        what = f"this file cannot be written: {reason}"
        raise Problems([Problem(what, Place(name, 0, 0), id="output-file-unwritable")]) from None


def _content(name: str) -> bytes | None:
    """Return the content of the file, None if it does not exist; raise OSError if it is not writable."""
    if not os.path.exists(name):
        return None
    # os.replace needs write permission for the folder only, so it would replace a read-only file.
    if not os.access(name, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with open(name, "rb") as file:
        return file.read()


def _write_beside(name: str, content: bytes) -> str:
    """Write the content to a temporary file in the same folder, with the old file's owner and permissions."""
    target = os.path.realpath(name)
    handle, temporary = tempfile.mkstemp(prefix=".deepy-", dir=os.path.dirname(target))
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _copy_owner_and_mode(target, temporary)
    except BaseException:  # also Ctrl-C, while a slow disk is written to
        os.unlink(temporary)
        raise
    return temporary


def _copy_owner_and_mode(target: str, temporary: str) -> None:
    if not os.path.exists(target):
        os.chmod(temporary, 0o666 & ~_umask())
        return
    old = os.stat(target)
    with suppress(PermissionError):  # only root may change the owner of a file
        os.chown(temporary, old.st_uid, old.st_gid)
    os.chmod(temporary, old.st_mode & 0o777)


def _restore(name: str, content: bytes | None) -> None:
    if content is None:
        os.unlink(name)
    else:
        os.replace(_write_beside(name, content), os.path.realpath(name))


def _byte_order_mark(content: bytes | None) -> bytes:
    """Return the byte order mark (some Windows editors write one) if the old file starts with it."""
    return BOM if content and content.startswith(BOM) else b""


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
