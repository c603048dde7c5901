"""Read the files named on the command line, and parse each of them once.

A file is looked for in the `-d` directory, then in the working directory, then among the shipped configurations; its
suffix `.yml`, `.yaml` or `.json` may be omitted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from typing import NoReturn

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems, close_matches, listed, similar_folders
from neoxargs.base.programs import SHELL_SCRIPTS
from neoxargs.base.request import HOLDER_FILE, LOCK_FILE, is_lock_text
from neoxargs.base.shipped import config_folders
from neoxargs.resolve.yaml.compose import compose
from neoxargs.resolve.yaml.line_patterns import line_problem
from neoxargs.resolve.yaml.nodes import Mapping, Node, Scalar, is_null

SUFFIXES = ("", ".yml", ".yaml", ".json")
#: Seconds in which a program must open a pipe that is read as a configuration.
WRITER_TIMEOUT = 5
MAX_BYTES = 16_000_000  # the largest published configuration has 6 kB
LOCK_HINT = (
    "pass the run's configuration files instead; to see what has changed since the launch, run `deepy check` on this "
    "file alone, and to compare this run with another one, run `deepy diff`"
)
RUN_HINT = (
    "pass the run's configuration files instead; to see what has changed since the launch, run `deepy check` on "
    f"{LOCK_FILE} in the run folder"
)
EXAMPLE = "write `key: value` lines, such as `num_layers: 12`"


class File(Text):
    """A configuration file with its tree, which is parsed here and nowhere else.

    node: the document; None if it is empty or has a syntax error.
    problems: of its syntax.
    """

    def __init__(self, name: str, text: str) -> None:
        self.node, self.problems = compose(self)

    def mapping(self) -> Mapping:
        """Return the document, a mapping; raises Problems with all syntax errors."""
        if self.problems:
            raise Problems(self.problems)
        return mapping(self.node, Place(self.name, 0, 0))


def read_files(paths: Iterable[str | os.PathLike[str]], directory: str | os.PathLike[str] | None = None) -> list[File]:
    """Return all files; raises Problems for every file that cannot be read."""
    return [File(*text) for text in read_texts(paths, directory)]


def read_texts(paths: Iterable[str | os.PathLike[str]], directory: str | os.PathLike[str] | None = None) -> list[Text]:
    """Return the texts of all files, whatever their format; raises Problems for every file that cannot be read."""
    texts, problems = readable_texts(paths, directory)
    if problems:
        raise Problems(problems)
    return texts


def readable_texts(
    paths: Iterable[str | os.PathLike[str]], directory: str | os.PathLike[str] | None = None
) -> tuple[list[Text], list[Problem]]:
    """Return the texts of the files that can be read, whatever their format, and the problems of the others."""
    texts, problems, seen = list[Text](), list[Problem](), set[str]()
    for given in paths:
        path = os.fspath(given)
        try:
            found = find_file(path, os.fspath(directory) if directory else None)
            if os.path.realpath(found) in seen:
                _stop(found, "this file is given twice", "pass each file only once", id="file-given-twice")
            seen.add(os.path.realpath(found))
            if os.path.basename(found) == HOLDER_FILE:
                what = "this file says which process holds the folders of a run; it is not a configuration"
                _stop(found, what, RUN_HINT, id="file-is-lock")
            text = Text(found, _decode(found, _read(found)))
            if is_lock_text(text.text):
                _stop(found, "this is the lock file of a run, not a configuration", LOCK_HINT, id="file-is-lock")
            texts.append(text)
        except Problems as stop:
            problems += stop.problems
    return texts, [*dict.fromkeys(problems)]  # a `-d` folder that does not exist is missing for every file


def read_text(path: str) -> Text:
    """Return the text of a file of any format; raises Problems."""
    return Text(path, _decode(path, _read(path)))


def mapping(node: Node | None, whole: Place) -> Mapping:
    """Return the document if it is a mapping; raises Problems otherwise. whole: the place of the file."""
    if isinstance(node, Mapping):
        return node
    if node is None or is_null(node):
        raise Problems(Problem("this file contains no parameters", whole, EXAMPLE, id="file-without-parameters"))
    if whole.file.endswith(SHELL_SCRIPTS):
        hint = "`deepy check` and `plan` take a script that starts Megatron-LM by itself, and `deepy migrate` converts "
        _stop(whole.file, "this is a shell script, not a YAML file", f"{hint}it", id="file-not-a-mapping")
    what = f"expected `key: value`, got {'text' if isinstance(node, Scalar) else 'a list'}"
    found = line_problem(node.place) if isinstance(node, Scalar) else None
    raise Problems(found or Problem(what, node.place, EXAMPLE, id="file-not-a-mapping"))


def _stop(path: str, what: str, hint: str = "", *, id: str) -> NoReturn:
    raise Problems(Problem(what, Place(path, 0, 0), hint, id=id))


def find_file(path: str, directory: str | None = None) -> str:
    """Return the file that a name on a command line means; raises Problems."""
    # GPT-NeoX looks only in the `-d` folder; a path from the working directory is accepted as well.
    bases = [os.path.join(directory, path), path] if directory else [path]
    candidates = [base + suffix for base in bases for suffix in SUFFIXES]
    found = [candidate for candidate in candidates if os.path.exists(candidate)]
    files = [candidate for candidate in found if not os.path.isdir(candidate)]
    if files or (files := _shipped(path) if not directory else []):
        return files[0]
    if found:
        inside = configurations(found[0])
        if "config.json" in inside:  # a record, in the folder of a run, of a checkpoint or of a Hugging Face model
            inside = [name for name in inside if not name.endswith(".json") and name != "config.yml"]
        hint = f"pass one of its files: {listed(inside, most=6)}" if inside else "pass a YAML file"
        hint = RUN_HINT if LOCK_FILE in inside else hint
        _stop(found[0], "this is a folder, not a file", hint, id="file-is-directory")
    if directory and not os.path.isdir(directory):
        what = "the folder given with -d does not exist"
        _stop(directory, what, similar_folders(directory), id="directory-missing")
    _stop(bases[0], "there is no such file", _nearest(bases, path), id="file-missing")


def _shipped(path: str) -> list[str]:
    """Return shipped configurations with this name, with or without `configs/` before it."""
    name = path.removeprefix("configs/")
    candidates = [folder / f"{name.removesuffix('.yml')}.yml" for folder in config_folders()]
    return [str(candidate) for candidate in candidates if candidate.is_file()]


def _nearest(bases: Sequence[str], path: str) -> str:
    """Return a hint with files of the same name in the subfolders of the missing file's directory, or similar names."""
    folder, wanted = os.path.split(bases[0])
    folder = folder or "."
    if not os.path.isdir(folder):
        return f"check the path: the folder {folder} does not exist"
    present = configurations(folder)
    # Reversed: of names that differ only in their suffix, the first counts.
    stems = {os.path.splitext(name)[0]: name for name in reversed(present)}
    close = _in_subfolders(folder, wanted) or close_matches(wanted, present)
    close = close or [stems[stem] for stem in close_matches(os.path.splitext(wanted)[0], stems)]
    return f"did you mean {listed(close)}?" if close else ""


def _in_subfolders(folder: str, wanted: str) -> list[str]:
    """Return the files of this name, with or without its suffix, in the subfolders of a folder."""
    try:
        below = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
    except OSError:
        return []
    candidates = [os.path.join(name, wanted + suffix) for name in below for suffix in SUFFIXES]
    return [name for name in candidates if os.path.isfile(os.path.join(folder, name))]


def configurations(folder: str) -> list[str]:
    """Return the YAML and JSON files in a folder, except hidden ones, which belong to other programs."""
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(SUFFIXES[1:]) and name[0] != ".")
    except OSError:
        return []


def _read(path: str) -> bytes:
    """Return the content of a file; raises Problems.

    One byte more than is allowed is read, because the size of a pipe, as in `deepy check <(...)`, is not known before.
    """
    try:
        status = os.stat(path)
        if stat.S_ISFIFO(status.st_mode):
            data = _read_pipe(path)
        else:
            with open(path, "rb") as file:
                data = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        _stop(path, f"this file cannot be read: {reason}", id="file-unreadable")
    if len(data) > MAX_BYTES:
        big = f"{status.st_size / 1e6:.1f} MB" if status.st_size > MAX_BYTES else f"more than {MAX_BYTES / 1e6:.0f} MB"
        what = f"this file is {big}; a configuration may be at most {MAX_BYTES / 1e6:.0f} MB"
        _stop(path, what, "if this is training data, set text_path or data_path to this file", id="file-too-large")
    return data


def _read_pipe(path: str) -> bytes:
    """Return what is written to a pipe until its writers close it; raises OSError if there is none."""
    import select

    data, pipe = bytearray(), os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # to open it could wait for a writer forever
    try:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while len(data) <= MAX_BYTES:
            try:
                piece = os.read(pipe, 1 << 16)
            except BlockingIOError:  # a program has the pipe open, and has not written yet
                poll.poll()
                continue
            data += piece
            if not piece and (data or not _has_begun(poll.poll(WRITER_TIMEOUT * 1000))):
                break
    finally:
        os.close(pipe)
    return bytes(data)


def _has_begun(events: list[tuple[int, int]]) -> bool:
    """Return whether there is something to read; False if the writers have closed the pipe; raises OSError if none."""
    import select

    if not events:
        raise OSError(errno.EPIPE, "it is a pipe to which no program writes")
    return bool(events[0][1] & select.POLLIN)


def _decode(path: str, data: bytes) -> str:
    # Before NUL characters are searched, because in UTF-16 every second byte is one.
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        hint = f"convert it: iconv -f UTF-16 -t UTF-8 {path}"
        _stop(path, "this file is encoded in UTF-16; expected UTF-8", hint, id="file-not-utf8")
    if (nul := data.find(b"\0")) >= 0:  # valid in UTF-8, so decoding would not find it
        _stop(path, f"this is not a text file: byte {nul} is a NUL character", id="file-not-text")
    # byte order mark; the codec utf-8-sig would report positions that do not count it
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        start, begin = error.start, data.rfind(b"\n", 0, error.start) + 1
        line = data[begin:].split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")
        where = Place(path, data.count(b"\n", 0, start) + 1, len(data[begin:start].decode()) + 1, line)
        what = f"byte 0x{data[start]:02x} is not valid UTF-8"
        hint = f"save the file as UTF-8; if it is Latin-1, convert it: iconv -f LATIN1 -t UTF-8 {path}"
        raise Problems(Problem(what, where, hint, id="file-not-utf8")) from None
