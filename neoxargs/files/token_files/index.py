"""The format of Megatron's token files: `<prefix>.bin` holds the token ids, `<prefix>.idx` the sequences.

Each sequence is one document in the files that GPT-NeoX's tools and `deepy data` write for finetuning.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from neoxargs.base.record import Record
from neoxargs.base.regular_files import is_special, read_regular

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Header of the index: magic, version, type code of the token ids, numbers of sequences and of document ends.
HEADER, MAGIC = struct.Struct("<9sQBQQ"), b"MMIDIDX\x00\x00"
#: Megatron's type code -> numpy's name of the type. 6 and 7 are floating point types, which no token ids have.
TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
#: Type code -> bytes per token id.
ITEM_SIZES = {code: int(name[-1]) for code, name in TYPES.items()}
#: Type code -> its letter in the format of `struct`.
_LETTERS: dict[int, Literal["B", "b", "h", "i", "q", "H"]] = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}
#: The most bytes of the record beside a token file.
MAX_RECORD = 1 << 24
#: The label of a token that does not count toward the loss.
IGNORED = -100


def size_of(sequences: int, ends: int) -> int:
    """Return the bytes of an index: of each sequence a 4-byte length and an 8-byte offset, of each end 8 bytes."""
    return HEADER.size + 12 * sequences + 8 * ends


class TokenFile(Record):
    """An open token file."""

    prefix: str
    lengths: NDArray[Any]
    """Number of tokens in each sequence."""
    begins: NDArray[Any]
    """The position in `ids` where each sequence begins, followed by the total number of tokens."""
    ids: NDArray[Any]
    """The token ids of all sequences, memory-mapped."""


def read(prefix: str, types: Mapping[int, str] = TYPES) -> TokenFile | None:
    """Return a token file, or None if one of its two files is missing or not in this format.

    types: type code -> numpy's name of the type, of all types that the file may have.
    """
    import numpy as np

    idx, ids = Path(prefix + ".idx"), Path(prefix + ".bin")
    found = _lengths(idx, types) if idx.is_file() and ids.is_file() else None
    if found is None:
        return None
    kind, lengths = found
    begins = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    size, width = ids.stat().st_size, np.dtype(kind).itemsize
    if size < begins[-1] * width or size % width:
        return None
    return TokenFile(prefix, lengths, begins, np.memmap(ids, kind, "r") if size else np.empty(0, kind))


def ends(prefix: str) -> NDArray[Any]:
    """Return the document boundaries of an index: 0, then, for each document, the number of sequences up to its end."""
    import numpy as np

    with open(prefix + ".idx", "rb") as file:
        *_, sequences, count = HEADER.unpack(file.read(HEADER.size))
        # After 12 bytes a sequence: 4 of the length, and 8 of the offset, which follows from the lengths.
        return np.fromfile(file, "<i8", count, offset=12 * sequences)


class Tokenised(NamedTuple):
    """What tokenised a token file, as `deepy data` records it in `<prefix>.json`."""

    tokenizer_type: str
    vocab_size: int
    vocab_file_hash: str
    vocabulary_hash: str
    """See `sizes.vocab.VocabularyHashes`; "" in records of earlier versions."""
    eod: int | None
    """The token at the end of each document; None if there is none, or in records of earlier versions."""


def tokenised_by(prefix: str) -> Tokenised | None:
    """Return the tokenizer of a token file; None if another program wrote the file."""
    try:
        recorded = json.loads(read_regular(prefix + ".json", MAX_RECORD))
        of_file, vocabulary = (str(recorded.get(name, "")) for name in ("vocab_file_hash", "vocabulary_hash"))
        eod = None if recorded.get("eod") is None else int(recorded["eod"])
        return Tokenised(str(recorded["tokenizer_type"]), int(recorded["vocab_size"]), of_file, vocabulary, eod)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


class Extent(NamedTuple):
    """The size of a token file."""

    sequences: int
    tokens: int


def extent(prefix: str) -> Extent | None:
    """Return the size of a token file from its header; None if a file is missing or not in this format."""
    try:
        head = _header(prefix)
        return Extent(head[3], os.stat(prefix + ".bin").st_size // ITEM_SIZES[head[2]]) if head else None
    except OSError:
        return None


def digest(prefix: str) -> str:
    """Return a hash of the sizes and the beginnings of both files; "" if they cannot be read."""
    import hashlib  # slow to import

    found = hashlib.sha256()
    try:
        for ending in (".idx", ".bin"):
            if is_special(prefix + ending):
                return ""
            with open(prefix + ending, "rb") as file:
                found.update(b"%d " % os.fstat(file.fileno()).st_size + file.read(1 << 18))
    except OSError:
        return ""
    return found.hexdigest()[:16]


def type_of(prefix: str) -> str | None:
    """Return numpy's name of the type of the token ids; None if the file has none, or is not in this format."""
    head = _header(prefix)
    return TYPES[head[2]] if head else None


def document_at(prefix: str, position: int) -> int | None:
    """Return the number of the document that has a position of the file, in tokens; None if that cannot be known."""
    try:
        import numpy as np
    except ImportError:
        return None
    found = _lengths(Path(prefix + ".idx"), TYPES)
    if found is None:
        return None
    return int(np.searchsorted(np.cumsum(found[1], dtype=np.int64), position, side="right"))


def damage(prefix: str) -> str:
    """Return how an index contradicts itself, as the rest of a sentence that begins with its name; "" if it does not.

    Reads all of it: the lengths, which must add up to the offsets, and the ends of documents.
    """
    import numpy as np

    with open(prefix + ".idx", "rb") as file:
        head = file.read(HEADER.size)
        if len(head) < HEADER.size or not head.startswith(MAGIC):
            return f"is not a Megatron index, which starts with {MAGIC[:7].decode()}"
        _, _, code, count, ends = HEADER.unpack(head)
        if os.fstat(file.fileno()).st_size < size_of(count, ends):
            return "is truncated"
        lengths, offsets = np.fromfile(file, "<i4", count), np.fromfile(file, "<i8", count)
        documents = np.fromfile(file, "<i8", ends)
    # A type that is not one of token ids stands for rewards, whose width the size of the other file tells.
    width = ITEM_SIZES.get(code) or (os.stat(prefix + ".bin").st_size // max(count, 1))
    expected = np.cumsum(lengths.astype(np.int64)) * width
    if len(wrong := np.flatnonzero((lengths < 0) | (offsets != expected - lengths.astype(np.int64) * width))):
        return f"is damaged: the offset and the length of document {int(wrong[0]):,} do not follow the one before"
    # GPT-NeoX's merge_datasets.py records no ends of documents but the first 0.
    if ends > 1 and (documents[0] != 0 or documents[-1] != count or (np.diff(documents) < 0).any()):
        return f"is damaged: its ends of documents do not ascend from 0 to {count:,}"
    return ""


def begins_with_label(prefix: str) -> bool:
    """Return whether one of the first token ids is -100, as in label files, in which it stands for a prompt."""
    return any(IGNORED in ids for _, ids in some_ids(prefix, 1 << 12, parts=1))


def some_ids(prefix: str, count: int, parts: int = 4) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield about `count` token ids from evenly spaced parts of a file, the first and the last ids among them.

    Each part comes with the position of its first id. Without numpy.
    """
    head = _header(prefix)
    if head is None:
        return
    size, letter = ITEM_SIZES[head[2]], _LETTERS[head[2]]
    with open(prefix + ".bin", "rb") as file:
        total = os.fstat(file.fileno()).st_size // size
        length = -(-min(count, total) // parts)
        for begin in dict.fromkeys(part * (total - length) // max(parts - 1, 1) for part in range(parts) if length):
            file.seek(begin * size)
            data = file.read(length * size)
            yield begin, memoryview(data[: len(data) // size * size]).cast(letter)


def some_lengths(prefix: str, count: int) -> Sequence[int]:
    """Return the lengths of the first sequences, without numpy."""
    head = _header(prefix)
    if head is None:
        return ()
    with open(prefix + ".idx", "rb") as idx:
        idx.seek(HEADER.size)
        data = idx.read(4 * min(count, head[3]))
    return memoryview(data[: len(data) // 4 * 4]).cast("i")


def largest_of_type(prefix: str) -> int:
    """Return the largest number that the type of a file's token ids can hold; 0 in another format."""
    head = _header(prefix)
    return 2 ** (8 * ITEM_SIZES[head[2]] - _LETTERS[head[2]].islower()) - 1 if head else 0


def _header(prefix: str) -> tuple[Any, ...] | None:
    """Return magic, version, type code, and numbers of sequences and document ends; None in another format."""
    if is_special(prefix + ".idx") or is_special(prefix + ".bin"):
        return None
    with open(prefix + ".idx", "rb") as idx:
        head = idx.read(HEADER.size)
    known = len(head) == HEADER.size and head.startswith(MAGIC) and HEADER.unpack(head)[2] in ITEM_SIZES
    return HEADER.unpack(head) if known else None


def _lengths(idx: Path, types: Mapping[int, str]) -> tuple[str, NDArray[Any]] | None:
    """Return numpy's name of the type of the token ids, and the lengths of the sequences."""
    import numpy as np

    with idx.open("rb") as file:
        head = file.read(HEADER.size)
        if len(head) < HEADER.size or not head.startswith(MAGIC):
            return None
        _, _, code, count, ends = HEADER.unpack(head)
        if code not in types or os.fstat(file.fileno()).st_size < size_of(count, ends):
            return None
        return types[code], np.fromfile(file, "<i4", count)
