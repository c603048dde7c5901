"""Documents from text files: find the files, locate the documents in them, decode each document.

A document is one line of a JSON-lines file, or all of any other file. A file with another ending counts as JSON lines
if it has one object per line, as the .json files of Megatron-LM's examples do. A long plain file is cut into pieces at
line ends: Megatron shuffles and splits whole sequences, so an uncut large file could neither be tokenised in parallel
nor be divided into train, validation and test.

The parent process finds documents, which reads few bytes; the workers decode them.
"""

from __future__ import annotations

import glob
import gzip
import json
import os
import re
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from neoxargs.base.problems import Place, Problem, Problems, listed
from neoxargs.data.conversation import detect

#: Selects the source of the running Python's standard library: about 10 MB of text that every machine has.
STDLIB = "python-stdlib"
#: Folders of the standard library that are skipped: tests, generated tables and installed packages.
SKIPPED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "encodings",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "__pycache__",
}

#: Endings that messages name; the others are less common.
COMMON_JSON_LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
#: Endings of files with one JSON object per line. Of files that end in .json, the content decides.
JSON_LINES = (
    *COMMON_JSON_LINES, ".ndjson", ".ndjson.gz", ".ndjson.zst", ".jsonlines", ".json.gz", ".json.zst",
)  # fmt: skip
COMPRESSED = (".gz", ".zst")
#: Files with these endings are text, even if their first lines are JSON.
NEVER_JSON_LINES = (".md", ".rst", ".py")
#: Endings of the files that are read from a folder. A file given by name or pattern may have any other ending.
FOLDER_ENDINGS = (*JSON_LINES, ".txt", ".text", *NEVER_JSON_LINES)
#: Endings that are refused before reading; other files that are not UTF-8 are refused when they are decoded.
BINARY_ENDINGS = (
    *COMPRESSED, ".xz", ".bz2", ".zip", ".tar", ".bin", ".idx", ".parquet", ".arrow", ".npy", ".pt", ".pdf",
)  # fmt: skip

KIB, MIB = 1 << 10, 1 << 20
#: A longer line at the beginning of a file is not read to find out whether it is a document.
MAX_FIRST_LINE = 64 * MIB


class Raw(NamedTuple):
    """A document, or a piece of one, that has been located but not decoded."""

    path: str
    start: int
    """Line number in a JSON-lines file (from 1), byte offset in any other file."""
    size: int
    """Bytes on disk; in a compressed file, bytes of the compressed stream."""
    line: bytes | None = None
    """The line of a JSON-lines file; None for a piece of a plain file, which is read when it is decoded."""
    last: bool = True
    """Whether the document ends with this piece."""


def find(texts: Sequence[str], endings: tuple[str, ...] = FOLDER_ENDINGS) -> list[Path]:
    """Return the files that paths, folders and patterns select: in the given order, sorted within each, without
    duplicates. endings: of the files that are read from a folder.

    Raises Problems with every text that selects no file, and every binary file.
    """
    problems: list[Problem] = []
    selected: dict[Path, None] = {}
    for text in texts:
        files = _files(text, endings)
        problems += [] if files else [_no_files(text, endings)]
        problems += [_binary(f) for f in files if ends_in(f, BINARY_ENDINGS) and not ends_in(f, JSON_LINES)]
        selected |= dict.fromkeys(files)
    if not texts:
        problems.append(Problem("no text was given", hint=f"pass {_selectable(endings)}", id="text-not-given"))
    if problems:
        raise Problems(problems)
    return list(selected)


def left_out(texts: Sequence[str], endings: tuple[str, ...] = FOLDER_ENDINGS) -> Iterator[Problem]:
    """Yield a warning for files that were selected twice, and for each folder with files that are not read."""
    times = Counter(file for text in texts for file in _files(text, endings))
    if twice := [str(file) for file, count in times.items() if count > 1]:
        what = f"given more than once, but tokenised only once: {listed(twice, 'and', most=3)}"
        yield Problem(what, severity="warning", id="text-given-twice")
    for text in dict.fromkeys(texts):
        folder = Path(text).expanduser()
        if folder.is_dir() and (others := _others(folder, endings)):
            kinds = (f"{kind} ({count:,})" for kind, count in others.most_common())
            what, hint = f"the folder {text} has files that are not tokenised: {listed(kinds, 'and', most=5)}", ""
            if endings == FOLDER_ENDINGS:
                hint = "to tokenise text files with other extensions, pass a pattern such as 'FOLDER/*.tex'"
            yield Problem(what, hint=hint, severity="warning", id="text-files-left-out")


def _others(folder: Path, endings: tuple[str, ...]) -> Counter[str]:
    """Count what `_files` leaves out of a folder, by extension; hidden files do not count."""
    others: Counter[str] = Counter()
    for path in folder.rglob("*"):
        if _hidden(path, folder) or ends_in(path, endings):
            continue
        if path.is_file():
            others[path.suffix or "no extension"] += 1
        elif path.is_symlink() and path.is_dir():
            others["links to folders"] += 1
    return others


def _files(text: str, endings: tuple[str, ...]) -> list[Path]:
    if text == STDLIB and ".py" in endings:
        return standard_library()
    path = Path(text).expanduser()
    if path.is_dir():
        files = (file for file in path.rglob("*") if ends_in(file, endings) and file.is_file())
        return sorted(file for file in files if not _hidden(file, path))
    if path.is_file():
        return [path]
    return [Path(f) for f in sorted(glob.glob(str(path), recursive=True)) if os.path.isfile(f)]


def standard_library() -> list[Path]:
    """Return the Python files of the standard library, sorted, without SKIPPED_FOLDERS."""
    root = sysconfig.get_paths()["stdlib"]
    sources = []
    for folder, below, files in os.walk(root):
        # In place: os.walk goes on with what is left in this list.
        below[:] = sorted(name for name in below if name not in SKIPPED_FOLDERS)
        sources += [Path(folder, name) for name in files if name.endswith(".py")]
    return sorted(sources)


def ends_in(file: Path, endings: tuple[str, ...]) -> bool:
    return file.name.lower().endswith(endings)


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _no_files(text: str, endings: tuple[str, ...]) -> Problem:
    path = Path(text).expanduser()
    if path.is_dir():
        common = (ending for ending in endings if ending in COMMON_JSON_LINES or ending not in JSON_LINES)
        what = f"the folder {text} contains no files that end in {listed(common)}"
        hint = "pass a pattern such as 'FOLDER/*.md' to select files with other extensions"
        hint = hint if endings == FOLDER_ENDINGS else ""
        return Problem(what, hint=hint, id="text-folder-empty")
    if glob.has_magic(text):
        return Problem(f"the pattern {text} matches no file", id="text-pattern-matches-nothing")
    if text == "-" or path.exists():
        what = f"{text} is not a regular file" if text != "-" else "- (standard input) is not supported as text"
        hint = "write the text to a file and pass that; files that end in .jsonl.gz or .jsonl.zst may stay compressed"
        return Problem(what, hint=hint, id="text-not-a-file")
    return Problem(f"{text} does not exist", hint=f"pass {_selectable(endings)}", id="text-missing")


def _selectable(endings: tuple[str, ...]) -> str:
    """Return in words what can be passed as text."""
    return "a file, a folder, " + (f"a pattern, or {STDLIB}" if ".py" in endings else "or a pattern")


def _binary(file: Path) -> Problem:
    hint = f"pass plain text in UTF-8, or files that end in {listed(COMMON_JSON_LINES)}"
    return Problem(f"{file} is not a text file", hint=hint, id="text-binary")


def documents(files: Sequence[Path], key: str = "text") -> Iterator[Raw]:
    """Yield every document of the files, long plain files in pieces. key: where a JSON line has its text."""
    piece = piece_size(sum(file.stat().st_size for file in files))
    for file in files:
        yield from _lines(file) if is_json_lines(file, key) else _pieces(file, piece)


def is_json_lines(file: Path, key: str) -> bool:
    """Whether each line of a file is a document; if the ending does not tell, the first two lines decide."""
    if ends_in(file, JSON_LINES + NEVER_JSON_LINES):
        return ends_in(file, JSON_LINES)
    with open(file, "rb") as disk:
        # Limited, because a file of another kind may be a single long line.
        first, second = (_object(disk.readline(MAX_FIRST_LINE)) for _ in range(2))
    if first is None:
        return False
    if ends_in(file, (".json",)):
        return second is not None or key in first
    return key in first and key in (second or first)


def _object(line: bytes) -> dict[str, Any] | None:
    if not line.lstrip().startswith(b"{"):  # also saves parsing a long line of another kind
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def piece_size(total: int) -> int:
    """Return the size in bytes of the pieces of a plain file: 1/256 of the text, between 4 KiB and 1 MiB.

    256 pieces are enough for a split of 1 % to get some.
    """
    return max(4 * KIB, min(MIB, total // 256))


def _lines(file: Path) -> Iterator[Raw]:
    with open(file, "rb") as disk:
        done = 0
        for number, line in enumerate(_unpacked(file, disk), start=1):
            # Of a compressed file, how much the decompressor has read so far.
            now = disk.tell() if ends_in(file, COMPRESSED) else done + len(line)
            if line.strip():
                yield Raw(str(file), number, now - done, line)
            done = now


def _unpacked(file: Path, disk: BinaryIO) -> Iterator[bytes]:
    """Yield the file's lines, decompressed; raise Problems if the archive is damaged."""
    if not ends_in(file, COMPRESSED):
        yield from disk
        return
    import zstandard

    try:
        yield from gzip.GzipFile(fileobj=disk) if ends_in(file, (".gz",)) else _zst_lines(disk)
    except (zstandard.ZstdError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise Problems(Problem(f"{file} cannot be decompressed: {error}", id="text-not-decompressible")) from error


def _zst_lines(disk: BinaryIO) -> Iterator[bytes]:
    rest = b""
    for data in _zst_frames(disk):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
    yield rest


def _zst_frames(disk: BinaryIO) -> Iterator[bytes]:
    """Yield the decompressed data; raise EOFError if the last frame is incomplete.

    Decompressed frame by frame, because zstandard's stream reader ends silently in a truncated file.
    """
    import zstandard

    frame = None
    while data := disk.read(KIB * 128):
        while data:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(data)
            data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame:
        raise EOFError("the file is truncated inside a compressed frame")


def _pieces(file: Path, piece: int) -> Iterator[Raw]:
    size = file.stat().st_size
    starts = [0, *(_cuts(file, size, piece) if size > piece else ()), size]
    for start, end in pairwise(starts):
        yield Raw(str(file), start, end - start, last=end == size)


def _cuts(file: Path, size: int, piece: int) -> Iterator[int]:
    """Yield a cut about every `piece` bytes, between a line end and a character that is not blank.

    No token spans such a place, so the cuts do not change the tokens.
    """
    with open(file, "rb") as stream:
        position = piece
        while position < size:
            stream.seek(position)
            found = _CUT.search(stream.read(piece))
            if found:
                yield position + found.end()
            # At least one byte further if there is no cut here, and then a whole piece.
            position += (found.end() if found else 1) + piece


#: The end of a line before a character that is not blank.
_CUT = re.compile(rb"\n(?=[^ \t\n\r])")


def decode(raw: Raw, key: str) -> str | Problem:
    """Return the text of a document, or the problem with it. key: where a JSON line has its text."""
    return _plain(raw) if raw.line is None else _json(raw, raw.line, key)


def _plain(raw: Raw) -> str | Problem:
    with open(raw.path, "rb") as stream:
        stream.seek(raw.start)
        data = stream.read(raw.size)
    try:
        # A byte order mark stands at the beginning of a file only.
        return data.decode("utf-8-sig" if raw.start == 0 else "utf-8")
    except UnicodeDecodeError as error:
        if b"\0" in data:  # which no encoding of text but UTF-16 and UTF-32 contains
            return _binary(Path(raw.path))
        return _not_utf8(raw.path, raw.start + error.start, data[error.start])


def _not_utf8(path: str, offset: int, byte: int) -> Problem:
    what = f"{path} is not UTF-8: byte 0x{byte:02x} at offset {offset}"
    return Problem(what, hint="convert the file, for example with iconv -f latin1 -t utf-8", id="text-not-utf8")


def _json(raw: Raw, line: bytes, key: str) -> str | Problem:
    tree = json_tree(raw, line)
    return tree if isinstance(tree, Problem) else _text_under(tree, key) or _no_text(raw, line, tree, key)


def json_tree(raw: Raw, line: bytes) -> Any | Problem:
    """Return the value of a JSON line, or the problem with it."""
    try:
        return json.loads(line)
    except UnicodeDecodeError as error:
        return _not_utf8(f"{raw.path}:{raw.start}", error.start, line[error.start])
    except ValueError as error:
        return _not_json(error, place(raw, line, getattr(error, "colno", 1)))


def _not_json(error: ValueError, where: Place) -> Problem:
    reason = str(getattr(error, "msg", error)).removesuffix(" at")  # followed by the position
    hint = "each line must be one complete JSON object"
    if reason == "Invalid control character":
        hint = "inside a string, write a line break as \\n and a tab as \\t"
    return Problem(
        f"this line is not valid JSON: {reason[:1].lower()}{reason[1:]}",
        where=where,
        hint=hint,
        id="text-line-not-json",
    )


def _text_under(tree: Any, key: str) -> str | None:
    """Return the string under the key; a list of strings, as in files of the Pile, is joined to paragraphs."""
    value = tree.get(key) if isinstance(tree, dict) else None
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return "\n\n".join(value)
    return value if isinstance(value, str) else None


def _no_text(raw: Raw, line: bytes, tree: Any, key: str) -> str | Problem:
    if isinstance(tree, dict) and tree.get(key) in ("", []):
        return ""
    if not isinstance(tree, dict):
        what = "this line is not a JSON object"
        hint = f'write {{"{key}": "..."}}'
        return Problem(what, where=place(raw, line), hint=hint, id="text-line-not-an-object")
    what = f'this line has no text under the key "{key}"'
    names = [name for name, value in tree.items() if isinstance(value, str)]
    hint = f"set --json-key to a key with text: {listed(names)}" if names else ""
    if detect(tree):
        hint = "to tokenise conversations, use deepy data --chat"
    return Problem(what, where=place(raw, line), hint=hint, id="text-line-without-key")


def place(raw: Raw, line: bytes, column: int = 1) -> Place:
    """Return the place of a JSON line, or of a column in it."""
    return Place(raw.path, raw.start, column, line.decode("utf-8", errors="replace").rstrip("\n"))
