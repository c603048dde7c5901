"""Checksums of token files, recorded in `<prefix>.checksums.json` beside them, and compared with the files' contents.

They are recorded when deepy writes a file, and when a run reads a file of another program for the first time. A file is
read completely and compared once, and again when its size, its modification time or its change time is another one
than then; the change time also tells a modification time that was set back. Only `deepy data --verify` notices a disk
that returns other bytes than were written to it.

The record names neither the folder nor the prefix, so both may change. In a folder that this user cannot write to, what
was compared is recorded in the user's cache (`XDG_CACHE_HOME`) instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from neoxargs.base.files import replace_text
from neoxargs.base.problems import Problem
from neoxargs.files.checkpoints.checksums import Digest, digest_of
from neoxargs.files.token_files import index

#: The two files that a token file consists of; the index first, because it says where each document is.
SUFFIXES = (".idx", ".bin")
SAME_TOKENIZER = "use the tokenizer that tokenised the data, or tokenise the text again"


class Extreme(NamedTuple):
    """The smallest or the largest token id of a file."""

    id: int
    at: int
    """Its first position in the file, in tokens."""


class Record(NamedTuple):
    """What is recorded of one file."""

    digest: Digest
    ids: tuple[Extreme, Extreme] | None = None
    """The smallest and the largest token id; None for an index, for rewards and for an empty file."""
    compared: tuple[int, int] | None = None
    """Modification and change time (ns) of the file when it was read completely; None if that has not happened."""


Records = Mapping[str, Record]
"""Suffix -> record."""


def record_file(prefix: str) -> Path:
    """Return the path of the record beside a token file."""
    return Path(prefix + ".checksums.json")


def _record_of_user(prefix: str) -> Path:
    import hashlib  # slow to import

    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "deepy", "checksums")
    return cache / (hashlib.sha256(os.path.realpath(prefix).encode()).hexdigest()[:32] + ".json")


def recorded(prefix: str) -> dict[str, Record]:
    """Return what is recorded of a token file; empty if nothing is."""
    beside, own = _read(record_file(prefix)), _read(_record_of_user(prefix))
    # The digests beside the files count; the user's record adds when these contents were compared.
    same = {
        suffix: record
        for suffix, record in own.items()
        if not beside or (suffix in beside and beside[suffix].digest == record.digest)
    }
    return {**beside, **same}


def _read(file: Path) -> dict[str, Record]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {suffix: _from_json(found[suffix]) for suffix in SUFFIXES if suffix in found}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _from_json(entry: dict[str, Any]) -> Record:
    ids, compared = entry.get("ids"), entry.get("compared")
    extremes = (Extreme(*map(int, ids["smallest"])), Extreme(*map(int, ids["largest"]))) if ids else None
    return Record(Digest.from_json(entry), extremes, (int(compared[0]), int(compared[1])) if compared else None)


def _to_json(record: Record) -> dict[str, Any]:
    entry: dict[str, Any] = record.digest.to_json()
    if record.ids:
        entry["ids"] = {"smallest": list(record.ids[0]), "largest": list(record.ids[1])}
    return entry | ({"compared": list(record.compared)} if record.compared else {})


def write(prefix: str, records: Records, made: bool = False) -> Path | None:
    """Record what is known of a token file; return where, None if neither folder can be written to.

    made: whether the files have just been written, so that nothing else that is recorded counts. Raises OSError then.
    """
    lines = [f" {json.dumps(suffix)}: {json.dumps(_to_json(record))}" for suffix, record in sorted(records.items())]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    beside, own = record_file(prefix), _record_of_user(prefix)
    try:
        replace_text(beside, text)
    except OSError:
        if made:
            raise
    else:
        _remove(own)
        return beside
    try:
        own.parent.mkdir(parents=True, exist_ok=True)
        replace_text(own, text)
    except OSError:
        return None
    return own


def forget(prefix: str) -> None:
    """Remove the records of a token file that is about to be replaced."""
    record_file(prefix).unlink(missing_ok=True)
    _remove(_record_of_user(prefix))


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink(missing_ok=True)


def _times(file: str) -> tuple[int, int]:
    status = os.stat(file)
    return status.st_mtime_ns, status.st_ctime_ns


def is_compared(file: str, record: Record | None) -> bool:
    """Return whether a file was compared completely, and nothing shows that it has changed since."""
    return record is not None and os.path.getsize(file) == record.digest.size and _times(file) == record.compared


def known_digests(prefix: str) -> dict[str, Digest]:
    """Return suffix -> digest of the files that exist, without reading them: the checksum is None if none is recorded
    of a file of this size."""
    known, found = recorded(prefix), {}
    for suffix in SUFFIXES:
        if os.path.isfile(prefix + suffix):
            size = Digest(os.path.getsize(prefix + suffix), None)
            record = known.get(suffix)
            found[suffix] = record.digest if record and record.digest.size == size.size else size
    return found


def has_changed(prefix: str, suffix: str, difference: str) -> Problem:
    """Return the problem of a file that is not the one whose checksum was recorded."""
    record = next((file for file in (record_file(prefix), _record_of_user(prefix)) if file.is_file()), None)
    what = f"{prefix}{suffix} has changed since its checksum was recorded: it {difference}"
    hint = "the file is damaged or was replaced: copy it again, or tokenise the text again"
    hint += f"; if it was replaced on purpose, delete {record}" if record else ""
    return Problem(what, hint=hint, id="data-file-changed", about=("data_path",))


class Changes(NamedTuple):
    """What a comparison that reads little has found."""

    problems: list[Problem]
    unread: int
    """Bytes that are to be compared, or recorded, and were not read."""
    read: int


def changes(prefix: str, budget: int) -> Changes:
    """Compare a token file with its record as far as at most `budget` bytes have to be read. Records nothing."""
    known, problems, unread, read = recorded(prefix), [], 0, 0
    for suffix in SUFFIXES:
        file, record = prefix + suffix, known.get(suffix)
        size = os.path.getsize(file)
        if is_compared(file, record):
            continue
        if record is not None and size != record.digest.size:
            problems.append(has_changed(prefix, suffix, record.digest.difference(Digest(size, None))))
        elif record is None or read + size > budget:
            unread += size
        else:
            read += size
            if difference := record.digest.difference(digest_of(Path(file))):
                problems.append(has_changed(prefix, suffix, difference))
    return Changes(problems, unread, read)


class Outcome(NamedTuple):
    """What a complete reading of a file has shown."""

    file: str
    problem: Problem | None
    is_new: bool
    """Whether no checksum was recorded before, so that there was nothing to compare with."""
    record: Record


def examine(
    prefixes: Sequence[str], everything: bool = False, read: Callable[[int], Any] = lambda _: None
) -> Iterator[Outcome]:
    """Read the files of token files completely, compare them with their records, and record the result.

    everything: also read files that were compared before and have not changed. read: called with the number of bytes
    of each block. Yields an outcome for each file, also for those that need not be read. Raises OSError.
    """
    # All indexes first: they are small, and damage to them has the worst consequences.
    for suffix in SUFFIXES:
        for prefix in dict.fromkeys(prefixes):
            known = recorded(prefix).get(suffix)
            if not everything and is_compared(prefix + suffix, known):
                assert known is not None
                yield Outcome(prefix + suffix, None, False, known)
                continue
            record = _read_through(prefix, suffix, read)
            problem = _difference(prefix, suffix, known, record)
            if problem is None:
                # Read again: another run may have recorded something meanwhile, and `deepy data` may have written
                # other files, of which nothing was read here.
                now = recorded(prefix)
                if now.get(suffix) == known and is_compared(prefix + suffix, record):
                    write(prefix, {**now, suffix: record})
            yield Outcome(prefix + suffix, problem, known is None, record)


def _difference(prefix: str, suffix: str, known: Record | None, found: Record) -> Problem | None:
    if known and (difference := known.digest.difference(found.digest)):
        return has_changed(prefix, suffix, difference)
    if suffix == ".idx" and (damage := index.damage(prefix)):
        hint = "the file is damaged: copy both files again, or tokenise the text again"
        return Problem(f"{prefix}.idx {damage}", hint=hint, id="data-file-damaged", about=("data_path",))
    return None


def _read_through(prefix: str, suffix: str, read: Callable[[int], Any]) -> Record:
    """Read a file completely."""
    before = _times(prefix + suffix)
    ids = Ids(index.type_of(prefix) if suffix == ".bin" else None)

    def see(block: memoryview) -> None:
        ids.add(block)
        read(len(block))

    return Record(digest_of(Path(prefix + suffix), see), ids.extremes, before)


class Ids:
    """The smallest and the largest of token ids that arrive in blocks. kind: numpy's name of their type."""

    def __init__(self, kind: str | None) -> None:
        self.kind, self.count = kind, 0
        self.extremes: tuple[Extreme, Extreme] | None = None

    def add(self, block: Any) -> None:
        import numpy as np

        size = memoryview(block).nbytes
        if self.kind is None or not size or size % (width := np.dtype(self.kind).itemsize):
            self.kind = self.kind if not size else None  # of rewards, or an incomplete file
            return
        ids = np.frombuffer(block, self.kind)
        first = Extreme(int(ids[0]), self.count)
        low, high = self.extremes or (first, first)
        if (least := int(ids.min())) < low.id:
            low = Extreme(least, self.count + int(ids.argmin()))
        if (most := int(ids.max())) > high.id:
            high = Extreme(most, self.count + int(ids.argmax()))
        self.extremes, self.count = (low, high), self.count + size // width


def beyond(prefix: str, id_: int, document: int | None, rows: int, parameter: str = "") -> Problem:
    """Return the problem of a token id that the embedding has no row for.

    document: None if it is not known. parameter: the one that names the file, to begin the sentence with.
    """
    where = f" in document {document:,}" if document is not None else ""
    what = f"{prefix}.bin contains token id {id_}{where}, but the embedding has only {rows:,} rows"
    what, about = (f"{parameter}: {what}", parameter) if parameter else (what, "data_path")
    return Problem(what, hint=SAME_TOKENIZER, id="data-other-tokenizer", about=(about, "tokenizer_type"))


def first_beyond(
    prefix: str, ids: tuple[Extreme, Extreme] | None, rows: int, least: int = 0, parameter: str = ""
) -> Problem | None:
    """Return the problem of the smallest or the largest id of a file. least: the smallest one that is valid."""
    low, high = ids or (None, None)
    wrong = high if high and high.id >= rows else low if low and low.id < least else None
    return beyond(prefix, wrong.id, index.document_at(prefix, wrong.at), rows, parameter) if wrong else None
