"""What the server answers about a configuration or a table of runs, without its protocol."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from functools import cached_property
from typing import NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Edit, Place, Problem, Problems, sentence
from neoxargs.base.request import SHARED_TABLE, Request
from neoxargs.commands.check.command import other_program
from neoxargs.commands.check.fix import Find, Found, correct, find_in
from neoxargs.commands.check.table import WILDCARDS, find_table, read_table, table_of
from neoxargs.commands.explain.command import explain
from neoxargs.commands.lsp.cursor import Cursor
from neoxargs.registry import REGISTRY, normal
from neoxargs.registry.types import choices_of, words_of
from neoxargs.resolve import Draft, draft
from neoxargs.resolve.keys.corrections import current_names
from neoxargs.resolve.values.describe_type import describe_type
from neoxargs.resolve.yaml.edit import NotEditable, corrected
from neoxargs.resolve.yaml.read import File, find_file, read_text
from neoxargs.runs.run_spec import complete_run

#: A key at the top level, in YAML or in JSON.
_TOP_KEY = re.compile(r"^(?:\{?\s*\")?([A-Za-z_][\w.-]*)\"?\s*:", re.MULTILINE)
#: A text and a header in TOML.
_QUOTED = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'")
_HEADER = re.compile(r"^\s*\[\s*([\w.\s-]+)\]")


class Completion(NamedTuple):
    """A word that can stand at the position, and what it means."""

    word: str
    detail: str
    meaning: str


class Run(NamedTuple):
    """A run that has the file: one of the repository's table or, if none has it, the file alone.

    folder: that in which it is launched; "" if no table says so.
    """

    request: Request
    name: str = ""
    folder: str = ""


class Edited:
    """A configuration as it is in the editor, and the runs that have it.

    gpus: of a file in no run. read: returns the text of another file, saved or not; raises Problems. before: the runs
    when it was last read, which are kept while the table is no TOML, because someone edits it.
    """

    def __init__(
        self, text: Text, gpus: int | None, read: Callable[[str], Text] = read_text, before: Sequence[Run] = ()
    ) -> None:
        self.runs = _runs_of(text.name, gpus, before)
        names = (name for run in self.runs for name in run.request.files)
        self.text = Text(next(name for name in names if _same(name, text.name)), text.text)
        self.read = read

    @cached_property
    def is_ours(self) -> bool:
        """Whether the file has a key of ours: an editor sends every YAML file."""
        keys = {normal(key) for key in _TOP_KEY.findall(self.text.text)}
        return any(REGISTRY.find(key) or key in REGISTRY.sections for key in keys)

    @cached_property
    def is_others(self) -> bool:
        """Whether another program reads the file, and its problems are those for that program."""
        return not self.is_ours and other_program([self.text], self.runs[0].request) is not None

    # -- problems ----------------------------------------------------------------------------------------------------

    @cached_property
    def problems(self) -> list[Problem]:
        """The problems of this file in its runs, each once; no files that it names are read."""
        if not (self.is_ours or self.is_others):
            return []
        try:
            found = [each for of_run in self.find([self.text]) for each in of_run.problems]
        except Problems as stop:
            return list(stop.problems)
        ours = [each for each in found if each.where is None or each.where.file == self.text.name]
        return list({(each.id, sentence(each), each.where): each for each in ours}.values())

    def find(self, texts: Sequence[Text]) -> Sequence[Found]:
        """Return what is found in each run if this file has another text."""
        [own] = texts
        names = dict.fromkeys(name for run in self.runs for name in run.request.files)
        return self._find([own if name == own.name else self.read(name) for name in names])

    @cached_property
    def _find(self) -> Find:
        return find_in([run.request for run in self.runs])

    def correction(self, problem: Problem) -> str | None:
        """Return the text after the correction of a problem; None if it has none in this file."""
        if not problem.edits or not all(edit.where.file == self.text.name for edit in problem.edits):
            return None
        return self._with(problem.edits)

    def _with(self, edits: Sequence[Edit]) -> str | None:
        try:
            return corrected(self.text, edits).text
        except NotEditable:
            return None

    @cached_property
    def is_fixable(self) -> bool:
        """Whether a problem has a correction that can mean only one thing."""
        return any(all(edit.safe for edit in each.edits) and self.correction(each) for each in self.problems)

    @cached_property
    def fixed(self) -> str:
        """The text after all corrections that `deepy check --fix` makes in this file."""
        return correct([self.text], self.find).after[0].text

    # -- old names ---------------------------------------------------------------------------------------------------

    def renamed(self, line: int) -> Iterator[tuple[str, str]]:
        """Yield a title and the text with the current name of each key in a line, from 0; and one with those of all.

        Only of those with which all values of the file stay the same, also those that follow from GPT-NeoX's date.
        """
        here = [edit for edit in self._old_names if edit.where.line == line + 1]
        for edit in here:
            if after := self._same_values([edit]):
                yield f"rename {edit.where.written} to {edit.text}", after
        if here and len(self._old_names) > 1 and (after := self._same_values(self._old_names)):
            yield f"rename all {len(self._old_names)} old keys of this file", after

    @cached_property
    def _old_names(self) -> list[Edit]:
        return list(current_names(draft([File(*self.text)]).entries.spelled)) if self.is_ours else []

    def _same_values(self, edits: Sequence[Edit]) -> str | None:
        """Return the text after the edits if each run then has the same values; otherwise None."""
        after = self._with(edits)
        if after is None:
            return None
        try:
            same = all(_values(self._draft(run)) == _values(self._draft(run, after)) for run in self.runs)
        except Problems:
            return None
        return after if same else None

    def _draft(self, run: Run, text: str | None = None) -> Draft:
        """Return what the files of a run say. text: of this file, instead of its own. Raises Problems."""
        own = self.text if text is None else Text(self.text.name, text)
        return draft([File(*(own if name == own.name else self.read(name))) for name in run.request.files])

    # -- places ------------------------------------------------------------------------------------------------------

    def declarations(self, cursor: Cursor) -> list[Place]:
        """Return the place of the value that each run has for the key at a position: in this file or in another one.

        Of a value that is derived, such as `auto`, the first that it is derived from; of an alias, its anchor.
        """
        found: dict[Place, None] = {}
        for run in self.runs:
            try:
                place = _declared(cursor.name, self._draft(run), run.request.gpus)
            except Problems:
                continue
            if place:
                found[place] = None
        return list(found)

    def described(self, cursor: Cursor, markdown: bool) -> str:
        """Return what `deepy explain` says of a key, with its value in the saved files; "" where there is no key."""
        if not cursor.key:
            return ""
        for request in (self.runs[0].request, Request(())):
            try:
                return explain(cursor.name, request, markdown)
            except Problems:  # of the files, or of a name that is not known, which its diagnostic says
                continue
        return ""


def _runs_of(file: str, gpus: int | None, before: Sequence[Run]) -> Sequence[Run]:
    alone = [Run(Request([file], gpus=gpus))]
    path = find_table(os.path.dirname(file))
    if path is None:
        return alone
    folder, name = os.path.split(path)
    with chdir(folder):
        table = read_table(name)
        if any(problem.id == "runs-table-not-toml" for problem in table.problems):
            return before or alone
        runs = [run for run in table.runs if any(_same(each, file) for each in run.files)]
    found = []
    for run in runs:
        files = [os.path.join(folder, each) for each in run.files]
        found.append(Run(Request(files, gpus=run.gpus, ignored=run.ignored), run.name, folder))
    return found or alone


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _values(drafted: Draft) -> object:
    """Return what files say, without their spelling, and the defaults of the date that their keys tell."""
    values = {name: value.value for name, value in {**drafted.dialect.defaults(), **drafted.values}.items()}
    return values, drafted.auto, len(drafted.problems)


def _declared(name: str, drafted: Draft, gpus: int | None) -> Place | None:
    parameter = REGISTRY.find(name)
    if parameter is None:
        group = REGISTRY.sections.get(name)
        return drafted.section_places.get(group.section if group else name)
    if parameter.name not in drafted.values:
        return complete_run(drafted, os.environ, gpus).config.place(parameter.name)
    entry = drafted.entries.parameters[parameter.name]
    value = entry.value.place
    is_alias = value.line > 0 and value[:3] < entry.place[:3]
    return value if is_alias else entry.place


def completions(cursor: Cursor) -> Iterator[Completion]:
    """Yield the keys of the section at a position, or the values of its key."""
    if cursor.in_value:
        if parameter := REGISTRY.find(cursor.name):
            for value, word in zip(choices_of(parameter.type), words_of(parameter.type), strict=True):
                default = " (default)" if parameter.default == value else ""
                yield Completion(word, f"{cursor.name}{default}", parameter.description)
        return
    prefix = f"{cursor.section}." if cursor.section else ""
    for name in REGISTRY.sections:
        if name.startswith(prefix) and "." not in (word := name.removeprefix(prefix)):
            yield Completion(word, "section", "")
    for parameter in REGISTRY.parameters.values():
        if parameter.name.startswith(prefix) and "." not in (word := parameter.name.removeprefix(prefix)):
            yield Completion(word, describe_type(parameter.type), parameter.description)


# -- a table of runs, `deepy.toml` or `[tool.deepy]` in pyproject.toml -------------------------------------------------


def problems_of_table(table: Text) -> list[Problem]:
    """Return the problems of a table as it is in the editor. Those of its runs belong to their files."""
    folder, name = os.path.split(table.name)
    with chdir(folder):
        problems = table_of(Text(name, table.text)).problems
    return [each for each in problems if each.where and each.where.file == name]


def files_of_table_at(table: Text, lines: Sequence[str], line: int, column: int) -> list[str]:
    """Return the file that the text at a position names, or those that its pattern matches; counts from 0."""
    folder, name = os.path.split(table.name)
    headers = [header[1] for each in lines[: line + 1] if (header := _HEADER.match(each))]
    if name == SHARED_TABLE and not re.match(r"\s*tool\s*\.\s*deepy\b", headers[-1] if headers else ""):
        return []
    at = (each for each in _QUOTED.finditer(lines[line]) if each.start() <= column <= each.end())
    word = next((each[1] or each[2] for each in at), "")
    with chdir(folder):
        try:
            found = sorted(glob.glob(word, recursive=True)) if WILDCARDS.intersection(word) else [find_file(word)]
        except Problems:
            return []
        return [os.path.abspath(file) for file in found if os.path.isfile(file)]
