"""How a run creates files: never writable by everyone, and complete or not at all."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple


def never_writable_for_all() -> None:
    """Let this process and its children create nothing that every user of the machine can change.

    A checkpoint or a log folder that anyone can write to lets anyone replace weights. The rest of the umask is kept, so
    that the members of a group can share a run if the umask allows it.
    """
    # The umask can only be read by setting it; meanwhile, another thread's files are at least not public.
    mask = os.umask(stat.S_IRWXG | stat.S_IRWXO)
    os.umask(mask | stat.S_IWOTH)


def replace_text(path: Path, text: str) -> None:
    """Write a text file, so that readers see the old or the new text, also if this process is killed meanwhile."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a hidden file beside `path`, which it replaces when the block ends.

    Readers see the old or the new content, also if this process is killed. After an exception, Ctrl-C and SIGTERM
    included, `path` is as it was and the hidden file is gone.
    """
    with replacing_all([path]) as [part]:
        yield part


@contextmanager
def replacing_all(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Do the same for several files: after an exception, also in the middle of the renames, all are as they were."""
    # Of the process, which tells what a killed one left; and random, because hosts and containers share folders.
    parts = [path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.part") for path in paths]
    kept = [part.with_suffix(".old") for part in parts]
    begun: list[tuple[Path, Path, Path]] = []
    try:
        yield parts
        for number, (path, part, old) in enumerate(zip(paths, parts, kept, strict=True), 1):
            if number < len(paths):  # after the last rename nothing can fail
                if path.exists():
                    _give_second_name(path, old)
                begun.append((path, part, old))
            os.replace(part, path)
    except BaseException:
        for path, part, old in reversed(begun):
            if part.exists():  # this one was not renamed, which may be the error
                continue
            if old.exists():
                os.replace(old, path)
            else:
                path.unlink(missing_ok=True)
        raise
    finally:
        for left in (*parts, *kept):
            with suppress(OSError):  # a read-only file system refuses this too, also for a file that does not exist
                left.unlink(missing_ok=True)


def _give_second_name(path: Path, other: Path) -> None:
    try:
        os.link(path, other)
    except OSError:  # a file system without hard links
        shutil.copy2(path, other)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside `folder`, which takes its name when the block ends.

    After an exception, Ctrl-C and SIGTERM included, the hidden folder is gone; one that a killed process left is
    removed first. Raises OSError, also if `folder` exists and is not empty.
    """
    part = folder.with_name(f".writing-{folder.name}")
    try:
        if part.exists():
            shutil.rmtree(part)
        part.mkdir(parents=True)
        yield part
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def why_unwritable(folder: Path) -> str:
    """Return why an existing or future folder cannot be written to; empty if it can."""
    parent, folder = nearest_existing(folder), folder.absolute()
    broken = [path for path in (folder, *folder.parents) if os.path.islink(path) and not os.path.exists(path)]
    if broken or not parent.is_dir():
        return f"{broken[0]} is a symbolic link that leads nowhere" if broken else f"{parent} is a file, not a folder"
    if os.statvfs(parent).f_flag & os.ST_RDONLY:
        return f"the file system of {parent} is read-only"
    if not os.access(parent, os.W_OK | os.X_OK):
        return f"this user has no permission to write to {parent}"
    if max(len(os.fsencode(part)) for part in folder.parts) > os.pathconf(parent, "PC_NAME_MAX"):
        return f"a name in this path is longer than the file system of {parent} allows"
    # /proc and /sys are writable for root by their permissions, but files cannot be created there
    if not os.statvfs(parent).f_blocks:
        return f"files cannot be created in {parent}"
    return ""


def nearest_existing(folder: Path) -> Path:
    """Return the folder itself if it exists, otherwise the nearest parent that does."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))


class Text(NamedTuple):
    """A configuration file: its name for messages, and its text."""

    name: str
    text: str
