"""The files that one rank writes into a checkpoint, with their digests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch

from neoxargs.files.checkpoints.checksums import ChecksumFile, Digest, digest_of
from neoxargs.train.checkpoint.snapshot import Snapshot

#: Writes the contents of a file.
Fill = Callable[[ChecksumFile], object]


class RankFiles:
    """Writes files directly, or copies what to write and writes it in a thread.

    An error is kept, not raised, and nothing is written after it: all ranks continue to take part in the collectives of
    a save, and learn of the error when they compare the outcomes.

    A thread is enough, and is simpler than a process: it spends its time in system calls and in computing checksums,
    both of which release the interpreter's lock, needs no second copy in shared memory, and ends with its rank.
    """

    def __init__(self, part: Path, zip_format: bool = True, copies: Snapshot | None = None) -> None:
        """part: the folder of the checkpoint. zip_format: False writes torch's older format.

        copies: where to copy the tensors to, for a thread that `start` starts; None writes directly.
        """
        self.part, self.copies = part, copies
        self.settings = {"_use_new_zipfile_serialization": zip_format}
        self.digests: dict[str, Digest] = {}
        self.error = ""
        self.waiting: list[tuple[Path, Fill]] = []
        self.thread: threading.Thread | None = None
        if copies:
            copies.start()

    def save(self, value: Any, path: Path) -> None:
        """Write an object as torch.save does."""
        kept = self.copies.of(value) if self.copies else value
        self._add(path, lambda file: torch.save(kept, cast("IO[bytes]", file), **self.settings))

    def text(self, text: str, path: Path) -> None:
        """Write a text."""
        self._add(path, lambda file: file.write(text.encode()))

    def bytes(self, data: bytes, path: Path) -> None:
        """Write bytes, into a folder that is made if it is not there."""
        with self.errors_kept():
            path.parent.mkdir(parents=True, exist_ok=True)
        self._add(path, lambda file: file.write(data))

    def add(self, path: Path) -> None:
        """Add a file that another program wrote."""
        with self.errors_kept():
            self.digests[self._name(path)] = digest_of(path)

    def start(self) -> None:
        """Write the copies in a thread, which ends with this process: `finish` waits for it."""
        # Before the next step changes the tensors; writing needs the copies only.
        assert self.copies
        self.copies.wait()
        self.thread = threading.Thread(target=self._write_waiting, name="checkpoint", daemon=True)
        self.thread.start()

    @property
    def writing(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def finish(self) -> None:
        """Wait until all files are written."""
        if self.thread:
            self.thread.join()

    def raise_error(self) -> None:
        """Raise the error of this rank, if there was one."""
        if self.error:
            raise OSError(self.error)

    @contextmanager
    def errors_kept(self) -> Iterator[None]:
        """Within this, an OSError becomes the error of this rank."""
        try:
            yield
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            self.error = self.error or (f"{error.filename}: {reason}" if error.filename else reason)

    def _add(self, path: Path, fill: Fill) -> None:
        if self.copies:
            self.waiting.append((path, fill))
        else:
            self._write(path, fill)

    def _write_waiting(self) -> None:
        try:
            while self.waiting:
                self._write(*self.waiting.pop(0))
        except Exception as error:  # nothing else would report it
            self.error = self.error or f"{type(error).__name__}: {error}"

    def _write(self, path: Path, fill: Fill) -> None:
        # After an error the checkpoint is lost in any case, and a full disk should not be filled further.
        if self.error:
            return
        with self.errors_kept(), _without_zip_checksums():
            file = ChecksumFile(path)
            try:
                fill(file)
            finally:
                # In a thread it costs nothing to wait until the file is on the disk, which outlasts a power failure.
                self.digests[self._name(path)] = file.finish(durable=self.thread is not None)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.part))


@contextmanager
def _without_zip_checksums() -> Iterator[None]:
    """Within this, torch.save does not compute the checksums of its zip archives, which torch.load never verifies.

    They cost as much time as the ones that `Digest` records instead.
    """
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)
