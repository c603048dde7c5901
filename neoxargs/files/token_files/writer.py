"""Writer of Megatron token files: `<prefix>.bin` holds the token ids, `<prefix>.idx` the position of each sequence.

megatron-core reads them (`IndexedDataset`). Its writer is not used because importing it takes longer than tokenising
10 MB of text, while the format is a header and three arrays; a test compares the output of both byte by byte. The
files appear under their final names only once they are complete.
"""

from __future__ import annotations

import os
import zlib
from array import array
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neoxargs.files.checkpoints.checksums import ChecksumFile, Digest
from neoxargs.files.token_files import checksums
from neoxargs.files.token_files.index import HEADER, MAGIC
from neoxargs.files.token_files.made_from import writing

VERSION = 1
#: Type of the token ids -> its code in the header.
CODES: dict[type[np.generic], int] = {np.uint16: 8, np.int32: 4}
#: The type of rewards, and its code in GPT-NeoX; in megatron-core, it stands for float64.
REWARD, REWARD_CODE = np.float32, 6


class Writer:
    """Appends sequences; `finish` moves both files to their final names, `discard` deletes unfinished ones.

    prefix: path of the files without `.bin` and `.idx`. stored: type of the token ids in the file.
    """

    def __init__(self, prefix: Path, stored: type[np.generic]) -> None:
        self.prefix, self.stored = prefix, stored
        with writing(prefix):
            prefix.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(prefix)
        self._crc32, self._ids = 0, checksums.Ids(np.dtype(stored).str if stored in CODES else None)
        self._parts = [_partial_file(prefix, os.getpid(), ending) for ending in ("bin", "idx")]
        self.lengths = array("i")
        self.ends = array("q", [0])
        """Document boundaries: 0, then, for each document, the number of sequences up to its end."""

    @cached_property
    def _bin(self) -> BinaryIO:
        """The file of token ids. Created by the first `add`, when a signal already leads to `discard`."""
        return open(self._parts[0], "wb")  # closed by finish and discard

    def add(self, ids: NDArray[np.generic], lengths: list[int], last: list[bool]) -> None:
        """Append sequences, concatenated in `ids`; `last` marks those that end a document. Empty ones are dropped."""
        assert ids.dtype == self.stored and ids.size == sum(lengths)
        with writing(self.prefix):
            self._bin.write(ids.data)
        self._crc32 = zlib.crc32(ids.data, self._crc32)
        self._ids.add(ids.data)
        for length, ends in zip(lengths, last, strict=True):
            if length:
                self.lengths.append(length)
            if ends and len(self.lengths) > self.ends[-1]:
                self.ends.append(len(self.lengths))

    @property
    def documents(self) -> int:
        return len(self.ends) - 1

    def finish(self) -> None:
        """Write the index, then rename both files, the index last: a token file without index counts as missing.

        The record of their checksums is removed before and written after: without it, files count as foreign ones.
        """
        with writing(self.prefix):
            self._bin.close()
            size = self._parts[0].stat().st_size
            index = self._write_index()
            bin_path, idx_path = paths(self.prefix)
            checksums.forget(str(self.prefix))
            idx_path.unlink(missing_ok=True)  # so that an old index is never read together with new ids
            os.replace(self._parts[0], bin_path)
            os.replace(self._parts[1], idx_path)
            tokens = checksums.Record(Digest(size, self._crc32), self._ids.extremes)
            checksums.write(str(self.prefix), {".bin": tokens, ".idx": checksums.Record(index)}, made=True)

    def _write_index(self) -> Digest:
        lengths = np.array(self.lengths, dtype=np.int32)
        sizes = lengths.astype(np.int64) * np.dtype(self.stored).itemsize
        code = REWARD_CODE if self.stored is REWARD else CODES[self.stored]
        header = HEADER.pack(MAGIC, VERSION, code, len(lengths), len(self.ends))
        idx = ChecksumFile(self._parts[1])
        idx.write(header)
        # Lengths in tokens, offsets in bytes, document boundaries: the three arrays after the header.
        for values in (lengths, np.cumsum(sizes) - sizes, np.array(self.ends, dtype=np.int64)):
            idx.write(values.tobytes())
        return idx.finish()

    def discard(self) -> None:
        """Delete the unfinished files; without effect after `finish`."""
        with suppress(OSError):  # a full disk, which has already been reported
            self._bin.close()
        for part in self._parts:
            part.unlink(missing_ok=True)


class TokenFile(NamedTuple):
    """The content of a token file."""

    ids: NDArray[np.generic]
    """All sequences, concatenated; read from disk when they are used."""
    lengths: NDArray[np.int32]
    ends: NDArray[np.int64]
    """Document boundaries, as in `Writer.ends`."""


def read(prefix: Path) -> TokenFile:
    """Open a token file that Writer has written."""
    bin_path, idx_path = paths(prefix)
    index = idx_path.read_bytes()
    _, _, code, sequences, documents = HEADER.unpack(index[: HEADER.size])
    stored = next(stored for stored, known in CODES.items() if known == code)
    lengths = np.frombuffer(index, np.int32, sequences, HEADER.size)
    # 12 bytes a sequence: 4 of the length, and 8 of the offset, which follows from the lengths.
    ends = np.frombuffer(index, np.int64, documents, HEADER.size + 12 * sequences)
    return TokenFile(np.memmap(bin_path, stored, "r"), lengths, ends)


def paths(prefix: Path) -> tuple[Path, Path]:
    """Return the paths of the token file and of its index."""
    return prefix.with_name(prefix.name + ".bin"), prefix.with_name(prefix.name + ".idx")


def exists(prefix: Path) -> bool:
    return all(path.is_file() for path in paths(prefix))


def damage(prefix: Path) -> str:
    """Describe what is wrong with a token file; return "" if both files are intact and match."""
    bin_path, idx_path = paths(prefix)
    missing = [str(path) for path in (bin_path, idx_path) if not path.is_file()]
    if missing:
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    with open(idx_path, "rb") as idx:
        header = idx.read(HEADER.size)
        if header[: len(MAGIC)] != MAGIC or len(header) < HEADER.size:
            return f"{idx_path} is not a Megatron index, which starts with {MAGIC[:7].decode()}"
        _, version, code, sequences, documents = HEADER.unpack(header)
        width = {code: np.dtype(stored).itemsize for stored, code in CODES.items()}.get(code, 0)
        lengths = idx.read(4 * sequences)
    if version != VERSION or not width:
        known = " or ".join(f"{code} ({stored.__name__})" for stored, code in CODES.items())
        return (
            f"{idx_path} has version {version} and token type {code}, but must have version {VERSION} and type {known}"
        )
    expected = HEADER.size + 12 * sequences + 8 * documents
    if idx_path.stat().st_size < expected:
        return f"{idx_path} is truncated: it has {idx_path.stat().st_size} bytes, but should have {expected}"
    # Only now: numpy refuses a buffer that ends within a number.
    expected = int(np.frombuffer(lengths, dtype=np.int32).sum(dtype=np.int64)) * width
    if bin_path.stat().st_size != expected:
        return f"{bin_path} has {bin_path.stat().st_size} bytes, but should have {expected} according to its index"
    return ""


def _partial_file(prefix: Path, pid: int, ending: str) -> Path:
    return prefix.with_name(f"{prefix.name}.{pid}.part.{ending}")


def _remove_leftovers(prefix: Path) -> None:
    """Remove the partial files of processes that no longer run (killed with SIGKILL)."""
    for path in prefix.parent.glob(f"{prefix.name}.*.part.*"):
        pid = path.name[len(prefix.name) + 1 :].partition(".")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            path.unlink(missing_ok=True)
