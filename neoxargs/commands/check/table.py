"""The table of a repository's runs: `deepy.toml`, or `[tool.deepy]` in pyproject.toml.

    base = "configs/common.yml"             # below the files of every run
    gpus = 8

    [runs]
    small = "configs/small.yml"
    large = { files = ["configs/large.yml", "configs/cluster.yml"], gpus = 64 }
    sizes = "configs/sizes/*.yml"           # one run for each file

The keys of a run other than `files` can stand at the top, for every run that does not set them.
"""

from __future__ import annotations

import glob
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems, did_you_mean, listed, sentence
from neoxargs.base.record import Record, replace
from neoxargs.base.request import OWN_TABLE, SHARED_TABLE
from neoxargs.commands.check.toml_places import PART, Keys, Path
from neoxargs.commands.explain.catalogue import known_ids
from neoxargs.hosts.hostfile import read_hostfile
from neoxargs.resolve.yaml.read import find_file, read_text

FOR_EVERY_RUN = ("base", "gpus", "hostfile", "ignore")
WILDCARDS = frozenset("*?[")


class Run(Record):
    """One run. Its files are named from the folder of the table."""

    name: str
    files: Sequence[str]
    gpus: int
    hostfile: str = ""
    ignored: frozenset[str] = frozenset()

    @property
    def depends_on(self) -> Sequence[str]:
        return [*self.files, self.hostfile] if self.hostfile else self.files


class _Path(NamedTuple):
    """A path of the table: the file of this name, or those that a pattern matches."""

    files: Sequence[str]
    is_pattern: bool = False


class Table(Record):
    """The runs of a table that can be checked, and what is wrong with the table."""

    name: str
    runs: Sequence[Run] = ()
    problems: Sequence[Problem] = ()


def find_table(folder: str) -> str | None:
    """Return the table of a folder or of the nearest folder above it in the same repository."""
    folder = os.path.abspath(folder)
    while True:
        if os.path.isfile(path := os.path.join(folder, OWN_TABLE)) or _has_table(
            path := os.path.join(folder, SHARED_TABLE)
        ):
            return path
        above = os.path.dirname(folder)
        if os.path.exists(os.path.join(folder, ".git")) or above == folder:
            return None
        folder = above


def _has_table(path: str) -> bool:
    try:
        return os.path.isfile(path) and is_table(read_text(path))
    except Problems:  # other programs complain about it
        return False


def is_table(file: Text) -> bool:
    """Return whether a file has a table of runs, by its name or, of the other name, its text."""
    name, text = os.path.basename(file.name), file.text
    if name != SHARED_TABLE or "deepy" not in text:
        return name == OWN_TABLE
    try:
        return "deepy" in tomllib.loads(text).get("tool", {})
    except tomllib.TOMLDecodeError:  # which read_table reports if the table of runs is in this file
        return re.search(r"^\s*\[\s*tool\s*\.\s*deepy\b", text, re.MULTILINE) is not None


def read_table(name: str) -> Table:
    """Read a table in the working directory."""
    try:
        return table_of(read_text(name))
    except Problems as stop:
        return Table(name, (), stop.problems)


def table_of(file: Text) -> Table:
    """Return the table of a text. Its file is in the working directory."""
    name, text = file
    prefix: Path = ("tool", "deepy") if name == SHARED_TABLE else ()
    reader = _Reader(Keys(name, text), prefix)
    found = reader.parsed(text)
    runs = list(reader.runs(found)) if found is not None else []
    return Table(name, runs, reader.problems)


class _Reader:
    """Reads the values of a table, and notes what is wrong with them."""

    def __init__(self, keys: Keys, prefix: Path) -> None:
        self.keys, self.prefix = keys, prefix
        self.problems: list[Problem] = []

    def problem(self, what: str, where: Place, hint: str = "", **more: Any) -> None:
        self.problems.append(Problem(what, where, hint, **{"id": "runs-table-value"} | more))

    # -- TOML --------------------------------------------------------------------------------------------------------

    def parsed(self, text: str) -> Mapping[str, Any] | None:
        """Return the table; of a key that is written twice, the first. None if the text is not TOML."""
        again: list[Path] = []
        for start, end, path in sorted(self._written_twice(), reverse=True):
            # Under another name, because tomllib would stop here.
            name, last = f"{path[-1]} {len(again)}", re.search(rf"{PART}$", text[start:end])
            assert last
            text = text[: start + last.start()] + json.dumps(name) + text[end:]
            again.append((*path[:-1], name))
        try:
            table: Any = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            what, _, at = str(error).partition(" (at ")
            self.problem(f"this is not TOML: {what}", self.keys.mistake(what, at), id="runs-table-not-toml")
            return None
        for *above, key in again:
            inner = table
            for part in above:
                inner = inner.get(part, {})
            inner.pop(key, None)
        for part in self.prefix:
            table = table.get(part)
            if not isinstance(table, dict):
                return {}
        return dict(table)

    def _written_twice(self) -> Iterator[tuple[int, int, Path]]:
        twice: list[Path] = []
        for path, ranges in self.keys.written.items():
            is_inside = any(path[: len(outer)] == outer for outer in twice)
            if len(ranges) > 1 and path[: len(self.prefix)] == self.prefix and not is_inside:
                twice.append(path)
                first, *others = (self.keys.place(*each) for each in ranges)
                what = f"{_named(path[len(self.prefix) :])} is written twice"
                for place in others:
                    self.problem(what, place, "remove one of the two, or rename it", also=(first,), id="runs-table-key")
                yield from ((*each, path) for each in ranges[1:])

    # -- values ------------------------------------------------------------------------------------------------------

    def runs(self, table: Mapping[str, Any]) -> Iterator[Run]:
        """Yield the runs that have files and a number of GPUs."""
        self._unknown_keys(table, self.prefix, (*FOR_EVERY_RUN, "runs"))
        shared = self._values({key: table[key] for key in FOR_EVERY_RUN if key in table}, self.prefix)
        rows, path = table.get("runs", {}), (*self.prefix, "runs")
        if not isinstance(rows, Mapping):
            self.problem(f"runs ({_written(rows)}) must be a table of runs", self.keys.value(path), EXAMPLE)
        elif not rows:
            self.problem("this table has no runs", self.keys.key(path if "runs" in table else self.prefix), EXAMPLE)
        else:
            for name, row in rows.items():
                yield from self._runs_of(name, row if isinstance(row, Mapping) else {"files": row}, row, shared)

    def _runs_of(self, name: str, row: Mapping[str, Any], written: Any, shared: Mapping[str, Any]) -> Iterator[Run]:
        path = (*self.prefix, "runs", name)
        self._unknown_keys(row, path, ("files", *FOR_EVERY_RUN))
        own = self._values(row, path, files_at=path if row is not written and "files" in row else None)
        values = {**shared, **own}
        if "gpus" in own or "hostfile" in own:  # one of them replaces both of the top
            values = {key: value for key, value in values.items() if key not in ("gpus", "hostfile") or key in own}
        if "files" not in row:
            self.problem(f"the run {name} has no files", self.keys.key(path), 'write files = "configs/NAME.yml"')
        if not values.keys() & {"gpus", "hostfile"}:
            what = f"the run {name} has neither gpus nor hostfile"
            self.problem(what, self.keys.key(path), "write gpus = 8, the number of GPUs that it is launched on")
        host = values.get("hostfile")
        gpus = values.get("gpus") or (host and host[1])
        if not gpus or not values.get("files") or None in values.values():
            return
        ignored = frozenset(shared.get("ignore") or ()) | frozenset(own.get("ignore") or ())
        base = [each for [each], _ in values.get("base", ())]
        for run, files in _combinations(name, values["files"], base):
            below = [each for each in base if each not in files]
            yield Run(run, [*below, *files], gpus, host[0] if host else "", ignored)

    def _unknown_keys(self, table: Mapping[str, Any], path: Path, known: Collection[str]) -> None:
        for key, value in table.items():
            if key in known:
                continue
            hint = did_you_mean(key, known) or f"keys: {listed(known, 'and')}"
            if "runs" in known and isinstance(value, Mapping):
                hint = did_you_mean(key, known) or f"for a run of this name: [{'.'.join((*path, 'runs', key))}]"
            what = f"{key} is not a key of {'a run' if 'files' in known else 'this table'}"
            self.problem(what, self.keys.key((*path, key)), hint, id="runs-table-key")

    def _values(self, table: Mapping[str, Any], path: Path, files_at: Path | None = None) -> dict[str, Any]:
        """Return the values of keys; None for one that is wrong."""
        read = {
            "files": self._files, "base": self._base, "gpus": self._gpus, "hostfile": self._hostfile,
            "ignore": self._ids,
        }  # fmt: skip
        found = {}
        for key in [key for key in read if key in table]:
            at = files_at if key == "files" and files_at else (*path, key)
            found[key] = read[key](table[key], at)
        if "gpus" in found and "hostfile" in found:
            self.problem("gpus and hostfile are both set", self.keys.key((*path, "hostfile")), "remove one of the two")
        return found

    def _texts(self, value: Any, path: Path, of: str) -> list[str] | None:
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list) and all(isinstance(text, str) and text for text in texts):
            return texts
        name = path[-1] if path[-1] in ("files", *FOR_EVERY_RUN) else f"the run {path[-1]}"
        self.problem(f"{name} ({_written(value)}) must be {of}", self.keys.value(path))
        return None

    def _base(self, value: Any, path: Path) -> list[_Path] | None:
        names = self._texts(value, path, "a path or a list of paths")
        return None if names is None else self._found(names, path)

    def _files(self, value: Any, path: Path) -> list[_Path] | None:
        names = self._texts(value, path, "a path or a list of paths")
        if names is not None and not names:
            self.problem("a run needs at least one file", self.keys.value(path))
        patterns = [name for name in names or () if WILDCARDS.intersection(name)]
        if len(patterns) > 1:
            what = f"{listed(patterns, 'and')} are patterns; one run can have one"
            self.problem(what, self.keys.value(path, patterns[1]), "write a run for each combination of files")
            return None
        return self._found(names, path, patterns) if names else None

    def _found(self, names: Sequence[str], path: Path, patterns: Collection[str] = ()) -> list[_Path] | None:
        found = []
        for name in names:
            if name in patterns:
                files = sorted(
                    {os.path.normpath(file) for file in glob.glob(name, recursive=True) if os.path.isfile(file)}
                )
                if not files:
                    self.problem(f"no file matches {name}", self.keys.value(path, name), id="runs-table-file")
                found.append(_Path(files, True))
                continue
            try:
                found.append(_Path([os.path.normpath(find_file(name))]))
            except Problems as stop:
                place = self.keys.value(path, name)
                for each in stop.problems:
                    what = f"{name}: {sentence(each)}"
                    self.problems.append(replace(each, what=what, where=place, id="runs-table-file"))
                found.append(_Path([]))
        return found if all(path.files for path in found) else None

    def _gpus(self, value: Any, path: Path) -> int | None:
        if type(value) is int and value >= 1:
            return value
        self.problem(f"gpus ({_written(value)}) must be a whole number, at least 1", self.keys.value(path))
        return None

    def _hostfile(self, value: Any, path: Path) -> tuple[str, int] | None:
        """Return the name of a hostfile and its number of slots."""
        if not isinstance(value, str):
            self.problem(f"hostfile ({_written(value)}) must be a path", self.keys.value(path))
            return None
        try:
            slots = read_hostfile(value)
        except Problems as stop:
            self.problems += stop.problems
            return None
        if slots is None:
            self.problem(f"{value}: there is no such file", self.keys.value(path, value), id="runs-table-file")
            return None
        return value, sum(slots.values())

    def _ids(self, value: Any, path: Path) -> list[str] | None:
        ids = self._texts(value, path, "an id or a list of ids")
        for unknown in [each for each in ids or () if each not in known_ids()]:
            hint = did_you_mean(unknown, known_ids())
            self.problem(f"{unknown} is not the id of a problem", self.keys.value(path, unknown), hint)
        return ids


EXAMPLE = 'write [runs], and below it, for example: small = { files = ["configs/small.yml"], gpus = 8 }'


def _combinations(name: str, paths: Sequence[_Path], base: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the files of each run: one, or one for each match of a pattern that is not below all."""
    patterns = (path.files for path in paths if path.is_pattern)
    matches = next(([file for file in files if file not in base] for files in patterns), None)
    stems = [os.path.splitext(os.path.basename(file))[0] for file in matches or ()]
    if matches is None:
        yield name, [path.files[0] for path in paths]
    for file, stem in zip(matches or (), stems, strict=True):
        files = [file if path.is_pattern else path.files[0] for path in paths]
        yield f"{name}/{stem if stems.count(stem) == 1 else file}", files


def _named(path: Path) -> str:
    return f"the run {path[1]}" if len(path) == 2 and path[0] == "runs" else ".".join(path) or "this table"


def _written(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)
