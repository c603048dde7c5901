"""The digest of a file is the same whether it was computed while writing or reading."""

from __future__ import annotations

import errno
import zlib
from pathlib import Path

import pytest

from neoxargs.files.checkpoints import checksums
from neoxargs.files.checkpoints.checksums import ChecksumFile, Digest, digest_of
from tests.support.snapshots import pinned


def write(path: Path, *parts: bytes, durable: bool = False) -> Digest:
    file = ChecksumFile(path)
    for part in parts:
        assert file.write(memoryview(part)) == len(part)
    return file.finish(durable)


def test_writing_and_reading_give_the_same_digest(tmp_path, monkeypatch):
    monkeypatch.setattr(checksums, "BLOCK", 3)  # several blocks
    written = write(tmp_path / "file", b"weights", b"", b"moments", durable=True)
    assert written == Digest(14, zlib.crc32(b"weightsmoments")) == digest_of(tmp_path / "file")
    assert write(tmp_path / "empty") == Digest(0, 0) == digest_of(tmp_path / "empty")


def test_a_difference_is_described():
    digest = Digest(14, 0x1234ABCD)
    assert digest.difference(digest) == ""
    pinned(digest.difference(Digest(13, 1)))
    pinned(digest.difference(Digest(14, 1)))
    assert Digest(14, None).difference(Digest(14, 1)) == ""


def test_an_error_waits_for_the_end_of_the_file():
    """torch's writer does not survive an exception; /dev/full fails like a full disk."""
    file = ChecksumFile("/dev/full")
    for _ in range(3):
        file.write(b"x" * 100_000)
    with pytest.raises(OSError, match="No space left") as raised:
        file.finish()
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "/dev/full")
    with pytest.raises(OSError, match="No space left"):  # noticed only when the buffer is written
        write(Path("/dev/full"), b"x")
