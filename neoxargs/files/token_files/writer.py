"""Writer of Megatron token files: `<prefix>.bin` holds the token ids, `<prefix>.idx` the position of each sequence.

megatron-core reads them (`IndexedDataset`). Its writer is not used because importing it takes longer than tokenising
10 MB of text, while the format is a header and three arrays; a test compares the output of both byte by byte. The
files appear under their final names only once they are complete.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from neoxargs.base.files import replacing
from neoxargs.files.checkpoints.checksums import ChecksumFile, Digest
from neoxargs.files.token_files import checksums
from neoxargs.files.token_files.index import HEADER, MAGIC, size_of
from neoxargs.files.token_files.made_from import writing

VERSION = 1
#: Type of the token ids -> its code in the header.
CODES: dict[type[np.generic], int] = {np.uint16: 8, np.int32: 4}
#: The type of rewards, and its code in GPT-NeoX; in megatron-core, it stands for float64.
REWARD, REWARD_CODE = np.float32, 6


@contextmanager
def new_file(prefix: Path, stored: type[np.generic]) -> Iterator[Writer]:
    """Yield the writer of a token file, which appears when the block ends; after an exception, nothing has changed.

    prefix: path of the files without `.bin` and `.idx`. stored: type of the token ids in the file.
    """
    bin_path, idx_path = paths(prefix)
    with ExitStack() as files:
        with writing(prefix):
            prefix.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(prefix)
            # The index is renamed last: a token file without index counts as missing.
            idx_part, bin_part = files.enter_context(replacing(idx_path)), files.enter_context(replacing(bin_path))
            stream = files.enter_context(open(bin_part, "wb"))
        writer = Writer(prefix, stored, stream)
        yield writer
        with writing(prefix):
            stream.close()
            records = writer.write_index(idx_part)
            # Without the record of their checksums, files count as foreign ones.
            checksums.forget(str(prefix))
            idx_path.unlink(missing_ok=True)  # so that an old index is never read together with new ids
            files.close()
            checksums.write(str(prefix), records, made=True)


class Writer:
    """Appends sequences to a token file.

    stored: type of the token ids in the file. lengths: of all sequences, in tokens. ends: document boundaries: 0, then,
    for each document, the number of sequences up to its end.
    """

    def __init__(self, prefix: Path, stored: type[np.generic], stream: BinaryIO) -> None:
        self.prefix, self.stored, self._stream = prefix, stored, stream
        self._size, self._crc32, self._ids = 0, 0, checksums.Ids(np.dtype(stored).str if stored in CODES else None)
        self.lengths = array("i")
        self.ends = array("q", [0])

    def add(self, ids: NDArray[np.generic], lengths: list[int], last: list[bool]) -> None:
        """Append sequences, concatenated in `ids`; `last` marks those that end a document. Empty ones are dropped."""
        assert ids.dtype == self.stored and ids.size == sum(lengths)
        with writing(self.prefix):
            self._stream.write(ids.data)
        self._size, self._crc32 = self._size + ids.nbytes, zlib.crc32(ids.data, self._crc32)
        self._ids.add(ids.data)
        for length, ends in zip(lengths, last, strict=True):
            if length:
                self.lengths.append(length)
            if ends and len(self.lengths) > self.ends[-1]:
                self.ends.append(len(self.lengths))

    @property
    def documents(self) -> int:
        return len(self.ends) - 1

    def write_index(self, path: Path) -> checksums.Records:
        """Write the index; return the records of both files."""
        lengths = np.array(self.lengths, dtype=np.int32)
        sizes = lengths.astype(np.int64) * np.dtype(self.stored).itemsize
        code = REWARD_CODE if self.stored is REWARD else CODES[self.stored]
        idx = ChecksumFile(path)
        idx.write(HEADER.pack(MAGIC, VERSION, code, len(lengths), len(self.ends)))
        # Lengths in tokens, offsets in bytes, document boundaries: the three arrays after the header.
        for values in (lengths, np.cumsum(sizes) - sizes, np.array(self.ends, dtype=np.int64)):
            idx.write(values.tobytes())
        tokens = checksums.Record(Digest(self._size, self._crc32), self._ids.extremes)
        return {".bin": tokens, ".idx": checksums.Record(idx.finish())}


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
        expected, size = size_of(sequences, documents), idx_path.stat().st_size
        # A damaged number may be larger than what memory could hold.
        lengths = idx.read(4 * sequences) if size >= expected else b""
    if version != VERSION or not width:
        known = " or ".join(f"{code} ({stored.__name__})" for stored, code in CODES.items())
        has = f"{idx_path} has version {version} and token type {code}"
        return f"{has}, but must have version {VERSION} and type {known}"
    if size < expected:
        return f"{idx_path} is truncated: it has {size} bytes, but should have {expected}"
    expected = int(np.frombuffer(lengths, dtype=np.int32).sum(dtype=np.int64)) * width
    if bin_path.stat().st_size != expected:
        return f"{bin_path} has {bin_path.stat().st_size} bytes, but should have {expected} according to its index"
    return ""


def _remove_leftovers(prefix: Path) -> None:
    """Remove the partial files of processes that no longer run (killed with SIGKILL)."""
    for path in paths(prefix):
        for part in path.parent.glob(f".{path.name}.*.part"):
            pid = part.name[len(path.name) + 2 :].partition(".")[0]
            if pid.isdigit() and not Path("/proc", pid).exists():
                part.unlink(missing_ok=True)
