"""The files that one rank writes into a checkpoint, with their digests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch

from neoxargs.checksums import ChecksumFile, Digest, digest_of


@contextmanager
def without_zip_checksums() -> Iterator[None]:
    """Within this, torch.save does not compute the checksums of its zip archives, which torch.load never compares.

    They cost as much time as the ones that `Digest` records instead.
    """
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


class RankFiles:
    """Writes files at once, or later in a thread.

    An error is kept, not raised, and nothing is written after it: all ranks continue to take part in the collectives of
    a save, and learn of the error when they compare the outcomes.
    """

    def __init__(self, part: Path, zip_format: bool = True) -> None:
        """part: the folder of the checkpoint. zip_format: False writes torch's older format."""
        self.part, self.settings = part, {"_use_new_zipfile_serialization": zip_format}
        self.digests: dict[str, Digest] = {}
        self.error = ""

    def save(self, value: Any, path: Path) -> None:
        """Write an object as torch.save does."""
        with without_zip_checksums():
            self._write(path, lambda file: torch.save(value, cast("IO[bytes]", file), **self.settings))

    def text(self, text: str, path: Path) -> None:
        """Write a text."""
        self._write(path, lambda file: file.write(text.encode()))

    def add(self, path: Path) -> None:
        """Add a file that another program wrote."""
        with self.errors_kept():
            self.digests[self._name(path)] = digest_of(path)

    @contextmanager
    def errors_kept(self) -> Iterator[None]:
        """Within this, an OSError becomes the error of this rank."""
        try:
            yield
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            self.error = self.error or (f"{error.filename}: {reason}" if error.filename else reason)

    def raise_error(self) -> None:
        """Raise the error of this rank, if there was one."""
        if self.error:
            raise OSError(self.error)

    def _write(self, path: Path, fill: Callable[[ChecksumFile], object]) -> None:
        if self.error:
            return
        with self.errors_kept():
            file = ChecksumFile(path)
            try:
                fill(file)
            finally:
                self.digests[self._name(path)] = file.finish()

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.part))
