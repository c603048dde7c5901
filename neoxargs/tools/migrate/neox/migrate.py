"""GPT-NeoX's YAML from one dialect to another: the rows applied to files that belong together, and the result checked.

Nothing is handed back that would resolve to another configuration than the original.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, NamedTuple

from neoxargs.problems import Place, Problem, Problems
from neoxargs.registry import ABSENT, REGISTRY, Parameter
from neoxargs.registry.history import NEWEST, changes, default_at, introduced, removed
from neoxargs.resolve import Text, draft
from neoxargs.resolve.dialect import NAMES
from neoxargs.resolve.yaml.nodes import node_of, shown
from neoxargs.tools.migrate.neox import placement
from neoxargs.tools.migrate.neox import rewrites as table
from neoxargs.tools.migrate.neox.rewrites import FORGOTTEN, GONE, Instead, Row, Written, row_for
from neoxargs.tools.migrate.neox.verify import differences, fitting, known, too_few, verify
from neoxargs.tools.migrate.yaml_edit import Document, Found

#: One setting under another name that is pinned.
NOT_PINNED = ("clip_grad",)


class Change(NamedTuple):
    """One edit, to be understood: where it was, what it was, what it is, and why."""

    where: Place
    before: str
    after: str
    why: str
    since: date | None = None


@dataclass
class Migrated:
    """The new texts in the order of the old ones."""

    texts: list[Text]
    changes: list[Change] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def migrate(texts: Sequence[Text], to: str) -> Migrated:
    """Files that belong together, in another dialect; raises Problems if they cannot be read or kept in meaning."""
    work = _Migration(texts, to)
    work.forget()
    if work.drafted.problems:
        raise Problems(work.drafted.problems)
    for document in work.documents:
        for name in list(document.entries()):
            if entry := document.entries().get(name):
                work.entry(document, entry)
    work.rename_sections()
    if any(problem.severity == "error" for problem in work.problems):
        bare = [problem.where[:3] for problem in work.problems if problem.where and not problem.hint]
        beside = [told for told in work.staying if any(at[:3] in bare for at in told.also)]
        raise Problems([*work.problems, *beside])
    work.name_dialect()
    result = [Text(document.name, document.text) for document in work.documents]
    fixed = [f"dialect={work.drafted.dialect.name}"] if work.is_part else []
    verify(draft(work.start, fixed), draft(result, fixed), work.gpus, Place(result[0].name, 0, 0))
    return Migrated(result, work.changes, [*work.staying, *work.problems])


class _Migration:
    def __init__(self, texts: Sequence[Text], to: str) -> None:
        self.start, self.to, self.day = texts, to, NAMES[to]
        self.drafted = draft(texts)
        if not self.drafted.readable:
            raise Problems(self.drafted.problems)
        self.documents = [Document(*text) for text in texts]
        self.originals = {text.name: Document(*text) for text in texts}
        self.is_part = any(p.required and p.name not in self.drafted.values for p in REGISTRY.parameters.values())
        self.values = {name: value.value for name, value in self.drafted.values.items()}
        self.gpus = fitting(self.drafted)
        self.before, errors = known(self.drafted, self.gpus)
        self.written = Written(self.get, self.values.__contains__)
        self.changes: list[Change] = []
        self.staying = [_stays(error) for error in errors if error.where and not too_few([error])]
        self.problems: list[Problem] = []
        self.sections: list[tuple[Document, str, str]] = []

    def get(self, name: str) -> Any:
        return self.values[name] if name in self.values and name != "attention_config" else self.before.get(name)

    # -- names that the registry does not have -----------------------------------------------------------------------

    def forget(self) -> None:
        """Take out names that GPT-NeoX had for a while, where they say nothing."""
        for document in self.documents:
            for name in [name for name in document.entries() if name in FORGOTTEN]:
                self.forget_one(document, document.entries()[name])  # where it stands after those before it left
        if self.changes:  # what they might have been meant for is known now
            self.start = [Text(document.name, document.text) for document in self.documents]
            self.before, _ = known(draft(self.start), self.gpus)

    def forget_one(self, document: Document, entry: Found) -> None:
        place, node = self.place(document, entry), document.plain(entry)
        others = [p for p in self.drafted.problems if p.where is None or p.where[:3] != place[:3]]
        if table.forgotten(entry.name, node, self.written):
            row = Row(entry.name, node, {}, "dropped, and this value says nothing", removed(entry.name))
            self.note(document, entry, "", row)
            document.remove(entry.name)
        else:
            what = f"{entry.name} ({shown(node_of(node))}) has no counterpart"
            had = f"GPT-NeoX had it from {introduced(entry.name)} to {removed(entry.name)}"
            others.append(Problem(what, place, f"{had}; take it out"))
        self.drafted.problems[:] = others

    # -- one entry ---------------------------------------------------------------------------------------------------

    def entry(self, document: Document, entry: Found) -> None:
        parameter = REGISTRY.find(entry.name)
        if parameter is None:
            self.section(document, entry)
        elif self.day == NEWEST:
            self.forward(document, entry, parameter)
        elif not table.is_of_seed(entry.name) and "." not in entry.name:
            self.back(document, entry, parameter)

    def forward(self, document: Document, entry: Found, parameter: Parameter) -> None:
        value = self.values.get(parameter.name, ABSENT)
        row = None if value is ABSENT else row_for(parameter.name, value)
        if row:
            self.apply(document, entry, row, value)
        elif entry.name.rpartition(".")[2] != parameter.attribute:
            self.rename(document, entry, parameter.attribute, table.rows()[entry.name][0])

    def back(self, document: Document, entry: Found, parameter: Parameter) -> None:
        value = self.values.get(parameter.name, ABSENT)
        old = table.old_spelling(parameter)
        row = table.earlier(parameter, value, self.written) if old is None and value is not ABSENT else None
        since = introduced(entry.name)
        if old:
            self.rename(document, entry, old, Row(entry.name, value, {}, "renamed", since))
        elif row:
            self.apply(document, entry, row, value)
        else:
            self.no_counterpart(document, entry, since)

    def section(self, document: Document, entry: Found) -> None:
        group = REGISTRY.sections.get(entry.name)
        since = introduced(entry.name)
        if self.day != NEWEST and since and "." not in entry.name:
            self.no_counterpart(document, entry, since)
        elif self.day == NEWEST and group and group.section != entry.name:
            self.sections.append((document, entry.name, group.section.rpartition(".")[2]))

    def no_counterpart(self, document: Document, entry: Found, since: date | None) -> None:
        what = f"{entry.name} has no counterpart in {self.to}: GPT-NeoX knows it since {since}"
        hint = "the line stays, and deepy reads it in every dialect"
        self.problems.append(Problem(what, self.place(document, entry), hint, severity="warning"))

    def rename_sections(self) -> None:
        """Last, so that the names of their keys stay true while these change."""
        for document, name, key in self.sections:
            entry = document.entries()[name]
            if "".join(name.rpartition(".")[:2]) + key in document.entries():
                what = f"{name} and {key} are two names of one section, and both have keys here"
                hint = f"put them all in {key}; deepy reads them as they are"
                self.problems.append(Problem(what, self.place(document, entry), hint, severity="warning"))
                continue
            self.changes.append(Change(self.place(document, entry), name, key, "renamed", introduced(key)))
            document.rename(name, key)

    def rename(self, document: Document, entry: Found, attribute: str, row: Row) -> None:
        key = document.spelled(entry, attribute) if "." not in entry.name else attribute
        old = document.text[slice(*entry.key)].strip("\"'")
        said = document.written(entry).replace(old, key, 1)
        self.note(document, entry, said, row)
        document.rename(entry.name, key)

    # -- a row -------------------------------------------------------------------------------------------------------

    def apply(self, document: Document, entry: Found, row: Row, value: Any) -> None:
        """Write what a row says in place of its old name."""
        new = row.today(value, self.written)
        if new is None:
            what = f"{entry.name} ({shown(node_of(value))}) has no counterpart in {self.to}"
            self.problems.append(Problem(what, self.place(document, entry)))
            return
        if any(self.contradicts(document, entry, name, to) for name, to in new.items()):
            return
        self.note(document, entry, self.worded(new), row)
        left = {name: _plain(to) for name, to in new.items() if self.is_left(name, to)}
        if entry.name not in new:
            placement.replace(self.documents, document, entry, left)
        self.values.update({name: _plain(to) for name, to in new.items() if to is not GONE})

    def worded(self, new: Mapping[str, Any]) -> str:
        told = {name: _plain(to) for name, to in new.items() if to is not GONE}
        words = [f"{name}: {shown(node_of(to))}" for name, to in told.items() if self.values.get(name, ABSENT) != to]
        return ", ".join([*words, *(f"no {name}" for name, to in new.items() if to is GONE)])

    def contradicts(self, document: Document, entry: Found, name: str, to: Any) -> bool:
        if to is GONE or isinstance(to, Instead) or self.values.get(name, to) == to:
            return False
        there = self.drafted.values.get(name)
        what = (
            f"{document.written(entry)} means {name}: {shown(node_of(to))} today, "
            f"which contradicts {name}: {shown(node_of(self.values[name]))}"
        )
        also = (there.source.where,) if there and there.source.where else ()
        self.problems.append(Problem(what, self.place(document, entry), "take out one of the two", also))
        return True

    def is_left(self, name: str, to: Any) -> bool:
        """Is this still to be written? A written value is changed, or taken out, where it stands."""
        if to is not GONE and name not in self.values:
            return True
        there = next((d for d in self.documents if name in d.entries()), None)
        if to is GONE and there:
            there.remove(name)
        elif isinstance(to, Instead) and there and self.values[name] != to.value:
            there.set(name, to.value)
        return False

    def note(self, document: Document, entry: Found, after: str, row: Row) -> None:
        self.changes.append(Change(self.place(document, entry), document.written(entry), after, row.why, row.since))

    def place(self, document: Document, entry: Found) -> Place:
        """Where it stood in the file as it was given."""
        original = self.originals[document.name]
        there = original.entries().get(entry.name)
        return original.place(there) if there else document.place(entry)

    # -- the dialect and its defaults --------------------------------------------------------------------------------

    def name_dialect(self) -> None:
        """Write the dialect, and the defaults that the files relied on and that it has otherwise."""
        there = next((d for d in self.documents if "dialect" in d.entries()), None)
        if there is None and self.is_part:
            self.problems.append(self.part())
            return
        document = there or self.documents[0]
        place = Place(document.name, 0, 0)
        comment = f"defaults of {self.drafted.dialect.name} that {self.to} has otherwise"
        for name, value in list(self.relied_on()):
            room = document.name.endswith(".json")
            document.add("", self.spelled_like(document, name), value, comment="" if room else comment)
            comment = ""
            why = f"the default changed: {shown(node_of(default_at(name, self.day)))} in {self.to}"
            self.changes.append(Change(place, "", f"{name}: {shown(node_of(value))}", why, _changed(name)))
        if there is None:
            document.add("", "dialect", self.to)
            self.changes.append(Change(place, "", f"dialect: {self.to}", self.drafted.dialect.reason))
        elif self.drafted.dialect.date != self.day:
            entry = document.entries()["dialect"]
            where = self.place(document, entry)
            self.changes.append(Change(where, document.written(entry), f"dialect: {self.to}", "as asked"))
            document.set("dialect", self.to)

    def part(self) -> Problem:
        missing = [p.name for p in REGISTRY.parameters.values() if p.required and p.name not in self.drafted.values]
        what = f"this is part of a configuration ({missing[0]} is not in it), so no dialect and defaults are written"
        hint = "migrate the files that belong together in one command"
        return Problem(what, Place(self.documents[0].name, 0, 0), hint, severity="warning")

    def relied_on(self) -> Iterator[tuple[str, Any]]:
        """The parameters that the new dialect's defaults alone would change, with what they were."""
        result = [Text(document.name, document.text) for document in self.documents]
        after, _ = known(draft(result, [f"dialect={self.to}"]), self.gpus)
        for name, then, _ in differences(self.before, after):
            if changes(name) and name not in (*NOT_PINNED, *self.values) and then is not ABSENT:
                yield name, then

    def spelled_like(self, document: Document, name: str) -> str:
        if "DSC" in REGISTRY.parameters[name].origins:
            return name
        return document.spelled(next(iter(document.entries().values())), name) if "_" in name else name


def _stays(error: Problem) -> Problem:
    """What `check` will refuse after migrating as before."""
    return replace(error, severity="warning")


def _plain(to: Any) -> Any:
    return to.value if isinstance(to, Instead) else to


def _changed(name: str) -> date | None:
    return changes(name)[-1][0] if changes(name) else None
