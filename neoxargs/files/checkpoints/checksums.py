"""Checksums of files: computed while a file is written, and verified later.

CRC-32 detects every error burst of at most 32 bits, and misses about one in four billion longer ones. It is in the
standard library, releases the interpreter's lock, and is the fastest of the library's algorithms. It does not protect
against a person who changes a file on purpose; against that, files are loaded without running code of them.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

#: Bytes that are read at once.
BLOCK = 1 << 22
DAMAGED = "its contents are damaged: they do not match the recorded checksum"


class Digest(NamedTuple):
    """Size and checksum of a file."""

    size: int
    crc32: int | None
    """None if only the size was recorded."""

    def difference(self, found: Digest) -> str:
        """Return how a file differs from what was recorded, "" if it does not."""
        if found.size != self.size:
            return f"has {found.size} bytes instead of {self.size}"
        if self.crc32 is not None and found.crc32 != self.crc32:
            return f"has the checksum {found.crc32 or 0:08x} instead of {self.crc32:08x}"
        return ""

    def to_json(self) -> dict[str, int | str]:
        """Return the digest as it is recorded, in which a checksum that is not known is left out."""
        return {"bytes": self.size, **({} if self.crc32 is None else {"crc32": f"{self.crc32:08x}"})}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Digest:
        """Read what `to_json` returned. Raises KeyError, TypeError or ValueError."""
        return cls(int(record["bytes"]), int(record["crc32"], 16) if "crc32" in record else None)


class ChecksumFile:
    """A file to write, with the digest of what was written.

    An error is raised only by `finish`: torch's writer does not survive one in the middle of a file.
    """

    def __init__(self, path: Path | str) -> None:
        self.file: IO[bytes] = open(path, "wb")  # noqa: SIM115 (closed by `finish`)
        self.size, self.crc32 = 0, 0
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        size = memoryview(data).nbytes
        self.crc32, self.size = zlib.crc32(data, self.crc32), self.size + size
        if self.error is None:
            try:
                self.file.write(data)
            except OSError as error:
                self.error = OSError(error.errno, error.strerror, self.file.name)
        return size

    def flush(self) -> None:
        """Do nothing: `finish` flushes, and reports errors."""

    def finish(self, durable: bool = False) -> Digest:
        """Close the file and return its digest; raises the first OSError. durable: wait until it is on the disk."""
        try:
            with self.file:
                if self.error is None and durable:
                    self.file.flush()
                    os.fsync(self.file.fileno())
        except OSError as error:
            self.error = self.error or OSError(error.errno, error.strerror, self.file.name)
        if self.error is not None:
            raise self.error
        return Digest(self.size, self.crc32)


def digest_of(file: Path, see: Callable[[memoryview], object] = lambda block: None) -> Digest:
    """Read a file and return its digest. see: called with each block."""
    size, crc32, block = 0, 0, memoryview(bytearray(BLOCK))
    with file.open("rb") as stream:  # buffered, so that every block but the last one is full
        while count := stream.readinto(block):
            size, crc32 = size + count, zlib.crc32(block[:count], crc32)
            see(block[:count])
    return Digest(size, crc32)


def archive_damage(file: Path) -> str:
    """Return what is wrong with a zip archive by the checksums of its entries, which torch.save records.

    "" if nothing is, if it records none, or if the file is no zip archive. Reads the file; raises OSError.
    """
    import zipfile  # slow to import

    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            # torch.save writes 0 everywhere if it computes no checksums.
            for entry in entries if any(entry.CRC for entry in entries) else ():
                with archive.open(entry) as stream:  # zipfile compares the checksum at the end
                    while stream.read(BLOCK):
                        pass
    except zipfile.BadZipFile as error:
        return DAMAGED if "CRC" in str(error) or zipfile.is_zipfile(file) else ""
    except (EOFError, NotImplementedError, zlib.error):  # a changed header
        return DAMAGED
    return ""
