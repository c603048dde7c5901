"""Migrate the GPT-NeoX YAML files of one run from one dialect to another, by rewriting single entries.

The result is verified: a migration that would change the resolved configuration raises Problems instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.base.record import replace
from neoxargs.checks.trainer import trainer_problems
from neoxargs.config.dialect import NAMES
from neoxargs.migrate.neox.placement import Files
from neoxargs.migrate.neox.rewrites import (
    CAPACITY,
    REMOVED,
    Context,
    Overwrite,
    Rewrite,
    is_of_seed,
    old_spelling,
    rewrite_back,
    rewrite_for,
    rewrites,
)
from neoxargs.migrate.neox.verify import changed, verify
from neoxargs.migrate.result import Change, Result
from neoxargs.registry import ABSENT, REGISTRY, Parameter
from neoxargs.registry.history import NEWEST, changes, introduced, removed
from neoxargs.resolve import File, draft
from neoxargs.resolve.guess import follows_dialect, guess_warnings, other_dialect
from neoxargs.resolve.yaml.edit import Document, Entry
from neoxargs.resolve.yaml.nodes import format_node, node_of
from neoxargs.runs.lenient import beyond, fitting_gpus, resolved


def migrate(texts: Sequence[Text], to: str) -> Result:
    """Migrate the files of one run to the dialect `to`.

    Raises Problems if the files cannot be read, or if their configuration cannot be expressed in that dialect.
    """
    work = _Migration([File(*text) for text in texts], to)
    for document in work.files.documents:
        for name in list(document.entries()):
            # Parsed again after each edit, which moves the ranges and can remove other entries.
            if entry := document.entries().get(name):
                work.entry(document, entry)
    work.rename_sections()
    if any(problem.severity == "error" for problem in work.problems):
        raise Problems(work.problems)
    work.name_dialect()
    # No dialect is written to a partial configuration, so both versions are compared under the one it has now.
    fixed = {"dialect": work.drafted.dialect.name} if work.is_part else {}
    new = work.files.texts
    verify(work.drafted.with_values(fixed), work.files.draft(**fixed), work.gpus, Place(new[0].name, 0, 0))
    return Result(new, work.changes, [*work.remaining, *work.problems])


class _Migration:
    def __init__(self, files: Sequence[File], to: str) -> None:
        self.to, self.day, self.drafted = to, NAMES[to], draft(files)
        if self.drafted.problems:
            raise Problems(self.drafted.problems)
        self.files = Files(files)
        self.is_part = any(p.required and p.name not in self.drafted.values for p in REGISTRY.parameters.values())
        self.values = {name: value.value for name, value in self.drafted.values.items()}
        self.gpus = fitting_gpus(self.drafted)
        self.before, errors = resolved(self.drafted, self.gpus)
        self.context = Context(self.get, self.values.__contains__)
        self.changes: list[Change] = []
        self.problems: list[Problem] = []
        self.remaining = [replace(error, severity="warning") for error in self.on_any_gpus(errors) if error.where]
        """Errors that `check` reports before and after the migration, as warnings."""
        self.sections: list[tuple[Document, str, str]] = []

    def on_any_gpus(self, errors: Sequence[Problem]) -> list[Problem]:
        """Return the errors that do not depend on the number of GPUs."""
        by_number = beyond(errors, resolved(self.drafted, None)[1]) if errors else []
        return [error for error in errors if error not in by_number]

    def without_counterpart(self, rewrite: Rewrite, what: str, place: Place) -> Problem:
        """Return the problem of an entry without a counterpart, with what another problem says to write instead."""
        said = [*self.remaining, *trainer_problems(self.before)]
        found = next((problem for problem in said if rewrite.old in problem.about), None)
        if found is None:
            return Problem(what, place, rewrite.by_hand, id="migrate-no-counterpart")
        places = (found.where, *found.also)
        also = tuple(other for other in places if other and other != self.before.place(rewrite.old))
        return replace(found, what=what, where=place, also=also, severity="error", id="migrate-no-counterpart")

    def get(self, name: str) -> Any:
        # attention_config is needed as a list of layers, which only the resolved configuration has.
        return self.values[name] if name in self.values and name != "attention_config" else self.before.get(name)

    # -- one entry ---------------------------------------------------------------------------------------------------

    def entry(self, document: Document, entry: Entry) -> None:
        parameter = REGISTRY.find(entry.name)
        if parameter is None:
            self.section(document, entry)
        elif self.day == NEWEST:
            self.forward(document, entry, parameter)
        elif not is_of_seed(entry.name) and "." not in entry.name:
            self.back(document, entry, parameter)

    def forward(self, document: Document, entry: Entry, parameter: Parameter) -> None:
        value = self.values.get(parameter.name, ABSENT)
        rewrite = None if value is ABSENT else rewrite_for(parameter.name, value)
        if parameter.name in CAPACITY and self.drops_tokens():
            what = f"{entry.name} does not exist in {self.to}: GPT-NeoX removed it on {removed(entry.name)}"
            hint = "deepy still reads this key; remove the line only if a newer GPT-NeoX has to read the file"
            self.warn("migrate-older-than-dialect", what, self.files.place(document, entry), hint)
        elif rewrite:
            self.apply(document, entry, rewrite, value)
        elif entry.name.rpartition(".")[2] != parameter.attribute:
            self.rename(document, entry, parameter.attribute, rewrites()[entry.name][0])

    def drops_tokens(self) -> bool:
        """Whether the files have experts of limited capacity, by their own dialect's default or explicitly."""
        return bool(self.before.get("moe_token_dropping")) and self.before.get("moe_num_experts") > 1

    def back(self, document: Document, entry: Entry, parameter: Parameter) -> None:
        value = self.values.get(parameter.name, ABSENT)
        old = old_spelling(parameter)
        rewrite = rewrite_back(parameter, value, self.context) if old is None and value is not ABSENT else None
        since = introduced(entry.name)
        if old:
            self.rename(document, entry, old, Rewrite(entry.name, value, {}, "renamed", since))
        elif rewrite:
            self.apply(document, entry, rewrite, value)
        else:
            self.no_counterpart(document, entry, since)

    def section(self, document: Document, entry: Entry) -> None:
        group = REGISTRY.sections.get(entry.name)
        since = introduced(entry.name)
        if self.day != NEWEST and since and "." not in entry.name:
            self.no_counterpart(document, entry, since)
        elif self.day == NEWEST and group and group.section != entry.name:
            self.sections.append((document, entry.name, group.section.rpartition(".")[2]))

    def no_counterpart(self, document: Document, entry: Entry, since: date | None) -> None:
        what = f"{entry.name} does not exist in {self.to}: GPT-NeoX added it on {since}"
        hint = "deepy accepts this key in every dialect; remove the line only if an older GPT-NeoX has to read the file"
        self.warn("migrate-newer-than-dialect", what, self.files.place(document, entry), hint)

    def rename_sections(self) -> None:
        # Runs after all other edits, which address keys by section name.
        for document, name, key in self.sections:
            entry = document.entries()[name]
            place = self.files.place(document, entry)
            if "".join(name.rpartition(".")[:2]) + key in document.entries():
                what = f"the file has both {name} and {key}, which are names of the same section"
                hint = f"move all keys into {key}: deepy reads both sections, but migrate cannot merge them"
                self.warn("migrate-section-twice", what, place, hint)
                continue
            self.changes.append(Change(place, name, key, "renamed", introduced(key)))
            document.rename(name, key)

    def rename(self, document: Document, entry: Entry, attribute: str, rewrite: Rewrite) -> None:
        key = document.spelled(entry, attribute) if "." not in entry.name else attribute
        old = document.text[slice(*entry.key)].strip("\"'")
        self.note(document, entry, document.written(entry).replace(old, key, 1), rewrite)
        document.rename(entry.name, key)

    # -- a rewrite ---------------------------------------------------------------------------------------------------

    def apply(self, document: Document, entry: Entry, rewrite: Rewrite, value: Any) -> None:
        """Replace the entry by its counterpart in the new dialect."""
        new = rewrite.counterpart(value, self.context)
        if new is None:
            what = f"{entry.name} ({format_node(node_of(value))}) has no counterpart in {self.to}"
            self.problems.append(self.without_counterpart(rewrite, what, self.files.place(document, entry)))
            return
        # All targets are compared before anything is edited.
        if any(self.contradicts(document, entry, name, to) for name, to in new.items()):
            return
        self.note(document, entry, self.change_text(new), rewrite)
        missing = {name: _value_of(to) for name, to in new.items() if not self.edited_in_place(name, to)}
        if entry.name not in new:
            self.files.replace(document, entry, missing)
        self.values.update({name: _value_of(to) for name, to in new.items() if to is not REMOVED})

    def change_text(self, new: Mapping[str, Any]) -> str:
        values = {name: _value_of(to) for name, to in new.items() if to is not REMOVED}
        words = [
            f"{name}: {format_node(node_of(to))}" for name, to in values.items() if self.values.get(name, ABSENT) != to
        ]
        return ", ".join([*words, *(f"no {name}" for name, to in new.items() if to is REMOVED)])

    def contradicts(self, document: Document, entry: Entry, name: str, to: Any) -> bool:
        """Report the entry if another entry sets `name` to a different value than `to`."""
        if to is REMOVED or isinstance(to, Overwrite) or self.values.get(name, to) == to:
            return False
        other = self.drafted.values.get(name)
        what = (
            f"{document.written(entry)} means {name}: {format_node(node_of(to))}, "
            f"which contradicts {name}: {format_node(node_of(self.values[name]))}"
        )
        also = (other.source.where,) if other and other.source.where else ()
        place, hint = self.files.place(document, entry), "remove one of the two settings"
        self.problems.append(Problem(what, place, hint, also, id="migrate-contradiction", about=(name,)))
        return True

    def edited_in_place(self, name: str, to: Any) -> bool:
        """Change or remove an existing entry of this name; return False if there is none and one must be added."""
        if to is not REMOVED and name not in self.values:
            return False
        holder = self.files.holder(name)
        if to is REMOVED and holder:
            holder.remove(name)
        elif isinstance(to, Overwrite) and holder and self.values[name] != to.value:
            holder.set(name, to.value)
        return True

    def note(self, document: Document, entry: Entry, after: str, rewrite: Rewrite) -> None:
        place = self.files.place(document, entry)
        self.changes.append(Change(place, document.written(entry), after, rewrite.why, rewrite.since))

    def warn(self, id: str, what: str, place: Place, hint: str) -> None:
        self.problems.append(Problem(what, place, hint, severity="warning", id=id))

    # -- the dialect and its defaults --------------------------------------------------------------------------------

    def name_dialect(self) -> None:
        """Write `dialect:`, and each default that the files relied on and that differs in the new dialect."""
        holder = self.files.holder("dialect")
        if holder is None and self.is_part:
            self.warn_partial_configuration()
            return
        document = holder or self.files.documents[0]
        self.write_defaults(document)
        if holder is None:
            place, before = Place(document.name, 0, 0), self.drafted.dialect
            guess = self.guess_warnings()
            self.problems += guess
            comment = f"the original file did not set a dialect; {before.name} was assumed" if guess else ""
            document.add("", "dialect", self.to, comment="" if _is_json(document) else comment)
            why = f"the file was read as {before.name}, because {before.reason}"
            self.changes.append(Change(place, "", f"dialect: {self.to}", why))
        elif self.drafted.dialect.date != self.day:
            entry = document.entries()["dialect"]
            where = self.files.place(document, entry)
            self.changes.append(Change(where, document.written(entry), f"dialect: {self.to}", "set by --to"))
            document.set("dialect", self.to)

    def guess_warnings(self) -> list[Problem]:
        """Return the warning of `check` about a guessed dialect, with what to do before a dialect is written."""
        other = other_dialect(self.drafted.dialect)
        if other is None:
            return []
        config, _ = resolved(self.drafted._replace(dialect=other), self.gpus)
        hint = (
            f"if the file was written for a different GPT-NeoX version, set the dialect in the original file, such as "
            f"`dialect: {other.name}`, and migrate the file again; the result then keeps that version's defaults"
        )
        return [replace(warning, hint=hint) for warning in guess_warnings(self.before, config)]

    def warn_partial_configuration(self) -> None:
        missing = [p.name for p in REGISTRY.parameters.values() if p.required and p.name not in self.drafted.values]
        what = f"{missing[0]} is missing, so this is only part of a configuration; no dialect and no defaults are added"
        hint = "pass all of the run's files in one command"
        self.warn("migrate-part-of-configuration", what, Place(self.files.documents[0].name, 0, 0), hint)

    def write_defaults(self, document: Document) -> None:
        comment = f"defaults of {self.drafted.dialect.name} that differ in {self.to}"
        if self.drafted.dialect.date == self.day:
            comment = "defaults that depended on a key that was replaced"
        for name, value, now in self.changed_defaults():
            document.add("", self.spelled_like(document, name), value, comment="" if _is_json(document) else comment)
            comment = ""
            default = "a derived value" if now is ABSENT else format_node(node_of(now))
            since = changes(name)[-1][0] if changes(name) else None
            why = f"the default changed to {default}"
            if self.day != NEWEST:
                why, since = f"the default of {self.to} is {default}", None
            place = Place(document.name, 0, 0)
            self.changes.append(Change(place, "", f"{name}: {format_node(node_of(value))}", why, since))

    def changed_defaults(self) -> list[tuple[str, Any, Any]]:
        """Return each parameter that would change with the new dialect's defaults, its old and its new value."""
        after, _ = resolved(self.files.draft(dialect=self.to), self.gpus)
        return [
            (each.name, self.before.get(each.name), after.get(each.name))
            for each in changed(self.before, after)
            if follows_dialect(each.name) and each.name not in self.values and self.before.get(each.name) is not ABSENT
        ]

    def spelled_like(self, document: Document, name: str) -> str:
        if "DSC" in REGISTRY.parameters[name].origins:
            return name
        return document.spelled(next(iter(document.entries().values())), name) if "_" in name else name


def _is_json(document: Document) -> bool:
    return document.name.endswith(".json")


def _value_of(to: Any) -> Any:
    return to.value if isinstance(to, Overwrite) else to
