"""What is said of a key of another program's file, whichever program that is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from math import isfinite
from typing import Literal

from neoxargs.base.files import Text
from neoxargs.base.problems import Edit, Place, Problem, Problems, close_matches, is_one_edit, listed
from neoxargs.base.record import Record, replace
from neoxargs.migrate.deepspeed.lenient_json import leaves
from neoxargs.registry.other_keys import Key
from neoxargs.registry.receivers import numbers
from neoxargs.resolve.keys.corrections import in_its_quotes
from neoxargs.resolve.yaml.nodes import Entry, Mapping, Node, Scalar
from neoxargs.resolve.yaml.read import File

#: What a program does with a key that it does not have.
Fate = Literal["refuses", "ignores", "may refuse"]


class Program(Record):
    """The program that reads a file, in one version."""

    name: str
    package: str
    """The name of its option, as in `--deepspeed VERSION`."""
    versions: tuple[str, ...]
    """The versions whose keys are known, oldest first."""
    given: str = ""
    """The version that the user names."""
    earlier: tuple[str, ...] = ()
    """Of the versions, those before their numbers began again."""

    @property
    def version(self) -> str:
        return self.given or self.versions[-1]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def is_before(self, version: str) -> bool:
        return self._order(self.version) < self._order(version)

    def before(self, version: str) -> str:
        """Return the known version that precedes another known one."""
        return self.versions[self.versions.index(version) - 1]

    def _order(self, version: str) -> tuple[bool, tuple[int, ...]]:
        return version not in self.earlier, numbers(version)

    @property
    def for_versions(self) -> Literal["error", "warning"]:
        """How severe it is if only other versions accept something: an error only if the user names the version."""
        return "error" if self.given else "warning"


class Settings(Record):
    """A YAML or JSON file as PyYAML reads it. twice: of keys that are written twice, of which the last counts."""

    tree: Mapping
    twice: Sequence[Problem]


def settings(text: Text) -> Settings | None:
    """Return the settings of a file; None if it is no mapping. Raises Problems if it has a syntax error."""
    file = File(*text)
    twice = [problem for problem in file.problems if problem.id == "duplicate-key"]
    if len(twice) < len(file.problems):
        raise Problems(file.problems)
    hint = "remove one of the two; the last one counts"
    warnings = [replace(problem, severity="warning", hint=hint, edits=()) for problem in twice]
    return Settings(file.node, warnings) if isinstance(file.node, Mapping) else None


def unknown_version(program: Program) -> Iterator[Problem]:
    """Yield a warning for a version whose keys are not known."""
    first, last = program.versions[0], program.versions[-1]
    if program.is_before(first) or replace(program, given=last).is_before(program.version):
        nearest = first if program.is_before(first) else last
        what = f"{program} is judged as if it were {nearest}: deepy knows the keys of {first} to {last}"
        yield Problem(what, severity="warning", id="other-program-version")


def unknown_key(
    entry: Entry, program: Program, names: Collection[str], beside: Collection[str], fate: Fate, section: str = ""
) -> Problem:
    """Return the problem of a key that no known version has. names: the keys of its section. beside: those written."""
    of = f"{program.name}'s {section}" if section else program.name
    does = {
        "refuses": f", and {program.name} refuses it",
        "ignores": f", and {program.name} ignores it without a message",
        "may refuse": "",
    }[fate]
    free = [name for name in names if name not in beside]
    near = [name for name in free if is_one_edit(entry.key, name)]
    near = near or [name for name in free if name.lower() == entry.key.lower().replace("-", "_")]
    found = near if len(near) == 1 else close_matches(entry.key, free)
    edits = (Edit(entry.place, "replace", in_its_quotes(found[0], entry.place)),) if found == near and near else ()
    hint = f"did you mean {listed(found)}?" if found else "remove it" if fate != "may refuse" else ""
    severity: Literal["error", "warning"] = "error" if fate == "refuses" else "warning"
    return Problem(
        f"{entry.key} is not a key of {of}{does}", entry.place, hint, (), severity, id="other-program-key", edits=edits
    )


def other_version(
    name: str,
    place: Place,
    program: Program,
    since: str,
    until: str,
    instead: str = "",
    does: str = "does not have",
    severity: Literal["error", "warning", ""] = "",
) -> Iterator[Problem]:
    """Yield the problem of a key that was removed before this version or added after it.

    since, until: the versions that introduced and removed it. does: what this version does with it. severity: "" for an
    error only if the user names the version.
    """
    if until and not program.is_before(until):
        change = f"version {until} {f'replaced it with {instead}' if instead else 'removed it'}"
        if severity == "error":
            change += f", and {program.before(until)} still had it"
        hint = f"write {instead}" if instead else f"remove it, or use {program.name} before {until}"
        is_written = place.written.strip("'\"") == name
        edits = (Edit(place, "replace", in_its_quotes(instead, place)),) if instead and is_written else ()
    elif since and program.is_before(since):
        change, hint, edits = f"it came with version {since}", f"remove it, or use {program.name} {since} or newer", ()
    else:
        return
    what = f"{program} {does} {name}: {change}"
    severity = "warning" if does == "ignores" else severity or program.for_versions
    yield Problem(what, place, hint, (), severity, id="other-program-key-version", edits=edits)


def removed_choice(
    name: str, value: str, place: Place, program: Program, known: Key, severity: Literal["error", "warning", ""] = ""
) -> Iterator[Problem]:
    """Yield the problem of a choice that was removed before this version."""
    if until := known.former.get(value, ""):
        yield from other_version(f"{name} ({value})", place, program, "", until, "", "refuses", severity)


def conflict(
    what: str,
    where: Place | None,
    hint: str,
    also: Iterable[Place] = (),
    severity: Literal["error", "warning"] = "error",
) -> Problem:
    """Return the problem of values that contradict each other."""
    return Problem(what, where, hint, tuple(also), severity, id="other-program-conflict")


def entries(tree: Mapping) -> dict[str, Entry]:
    """Return every entry with its dotted key, sections included; of a repeated key, the last."""
    return dict(leaves(tree))


def number(node: Node | None) -> int | float | None:
    """Return the number of a value, if it is a finite one."""
    return finite(node.value) if isinstance(node, Scalar) else None


def finite(value: object) -> int | float | None:
    is_number = isinstance(value, int) or (isinstance(value, float) and isfinite(value))
    return value if is_number and isinstance(value, int | float) and not isinstance(value, bool) else None
