"""First pass: the keys of all files, or of all `--set`s, by registry name; values are not checked.

Among the files, and among the `--set`s, a parameter may be set once, in whatever spelling.
"""

from __future__ import annotations

from collections.abc import Mapping as AnyMapping
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from neoxargs.base.problems import SET, Place, Problem, Problems
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve.keys.match import current_section, is_known
from neoxargs.resolve.keys.other_files import file_of_another_program
from neoxargs.resolve.yaml.compose import compose_set, duplicate_key
from neoxargs.resolve.yaml.nodes import Entry, Mapping, Node, Scalar, format_node, is_null, node_of
from neoxargs.resolve.yaml.read import File, mapping

#: A top-level key that begins so is ignored: a holder of values for anchors, as in Docker Compose.
EXTENSION = "x-"


class OddKey(NamedTuple):
    """A key that is neither parameter nor section, or that is not allowed where it is."""

    name: str
    """The dotted name, with `_` instead of `-`; for an outdented key, the name it would have inside its section."""
    entry: Entry
    kind: Literal["unknown", "dotted", "outdented"] = "unknown"
    outdented: Sequence[Entry] = ()
    """All outdented keys of this section; none if one of them could also be meant at the top level."""


class Entries:
    """The contents of the files, or of the `--set`s.

    parameters: registry name -> the first entry that sets it.
    sections: current name -> where the section begins.
    odd: keys that are neither, in the order of the files.
    spelled: every known or unknown name as spelled -> its first place.
    broken: names whose value cannot be read.
    readable: False if a file is not YAML or has no keys.
    """

    def __init__(self, kind: Literal["file", "set"]) -> None:
        self.kind = kind
        self.parameters: dict[str, Entry] = {}
        self.sections: dict[str, Place] = {}
        self.odd: list[OddKey] = []
        self.spelled: dict[str, Place] = {}
        self.broken: set[str] = set()
        self.problems: list[Problem] = []
        self.readable = True


def read_files(files: Sequence[File]) -> Entries:
    """The entries of all files."""
    reader = _Reader("file")
    for file in files:
        reader.file(file)
    return reader.entries


def read_overrides(overrides: Sequence[str]) -> Entries:
    """The entries of all `--set`s."""
    reader = _Reader("set")
    for argument in overrides:
        reader.argument(argument)
    return reader.entries


def with_overrides(sets: Entries, values: AnyMapping[str, Any]) -> Entries:
    """The entries of `--set`s with further values, by registry name, which replace those of the same parameter."""
    reader = _Reader("set")
    entries = reader.entries
    entries.parameters = {name: entry for name, entry in sets.parameters.items() if name not in values}
    entries.sections, entries.odd, entries.spelled = dict(sets.sections), sets.odd, dict(sets.spelled)
    entries.broken = sets.broken - values.keys()
    entries.problems = [problem for problem in sets.problems if values.keys().isdisjoint(problem.about)]
    for name, value in values.items():
        node = node_of(value)
        argument = f"{name}={node.text if isinstance(node, Scalar) else format_node(node)}"
        where = Place(SET, 1, 1, argument, len(name))
        inside = where._replace(column=len(name) + 2, width=len(argument) - len(name) - 1)
        reader.setting(name, node._replace(place=inside), where)
    return entries


def read_tree(tree: Mapping) -> Entries:
    """The entries of a tree that was not read from YAML."""
    reader = _Reader("file")
    reader.mapping(tree)
    return reader.entries


class _Reader:
    def __init__(self, kind: Literal["file", "set"]) -> None:
        self.entries = Entries(kind)
        self.duplicate_sections: set[str] = set()
        """Sections that occur twice in one mapping."""

    def file(self, file: File) -> None:
        if problem := file_of_another_program(file):
            self.entries.problems.append(problem)
            self.entries.readable = False
            return
        self.entries.problems += file.problems
        try:
            # An empty file is a problem of its own, but not one that cannot be parsed.
            if file.node is not None or not file.problems:
                self.mapping(mapping(file.node, Place(file.name, 0, 0)))
                return
        except Problems as stop:
            self.entries.problems += stop.problems
        self.entries.readable = False

    def argument(self, argument: str) -> None:
        key, equals, _ = argument.partition("=")
        where = Place(SET, 1, 1, argument, max(1, len(key.rstrip())))
        if not equals or not key.strip():
            self.entries.problems.append(_malformed(argument, where))
            return
        node, problems = compose_set(argument, len(key) + 1)
        self.entries.problems += problems
        name = normal(key.strip())
        if node is None and problems:
            self.entries.broken.add(name)
            return
        # `--set KEY=` is null.
        self.setting(name, node or Scalar(None, ""), where, key.strip())

    def setting(self, name: str, value: Node, where: Place, key: str = "") -> None:
        # `--set fp16.enabled=true` begins the section fp16, as a file would.
        for section in _sections_around(name):
            if section in REGISTRY.sections:
                self.entries.sections.setdefault(current_section(section), where)
        self.entry(name, Entry(key or name, value, where), {})

    def mapping(self, node: Mapping, path: str = "") -> None:
        begun: dict[str, Entry] = {}
        empty = ""  # the section on the line above, if it is empty
        outdented: Sequence[Entry] = ()  # the keys of that section
        for number, entry in enumerate(node.entries):
            if not path and entry.key.startswith(EXTENSION):
                continue
            name = path + normal(entry.key)
            inside = f"{empty}.{normal(entry.key)}"
            if empty and "." not in entry.key and not is_known(name) and is_known(inside):
                outdented = outdented or _outdented(empty, node.entries[number:])
                self.entries.odd.append(OddKey(inside, entry, "outdented", outdented))
                continue
            if "." in entry.key:
                self.entries.odd.append(OddKey(name, entry, "dotted"))
            else:
                self.entry(name, entry, begun)
            empty, outdented = name if is_null(entry.value) and name in REGISTRY.sections else "", ()

    def entry(self, name: str, entry: Entry, begun: dict[str, Entry]) -> None:
        self.entries.spelled.setdefault(name, entry.place)
        if parameter := REGISTRY.find(name):
            self.parameter(parameter.name, entry)
        elif name in REGISTRY.sections:
            self.section(name, entry, begun)
        else:
            self.entries.odd.append(OddKey(name, entry))

    def parameter(self, name: str, entry: Entry) -> None:
        first = self.entries.parameters.setdefault(name, entry)
        if first is not entry and name == "dialect" and _in_each_file(first, entry):
            return
        # for a section that occurs twice, one problem is enough
        if first is not entry and self.duplicate_sections.isdisjoint(_sections_around(name)):
            self.entries.problems.append(duplicate_key(name, entry, first, _two_spellings(first.place, entry), (name,)))

    def section(self, name: str, entry: Entry, begun: dict[str, Entry]) -> None:
        # Within one mapping only: a section may be continued in another file.
        first = begun.setdefault(name, entry)
        if first is not entry:
            self.entries.problems.append(duplicate_key(name, entry, first, about=(current_section(name),)))
            self.duplicate_sections.add(name)
        self.entries.sections.setdefault(current_section(name), entry.place)
        if isinstance(entry.value, Mapping):
            self.mapping(entry.value, name + ".")
        elif not is_null(entry.value):
            self.entries.problems.append(_not_a_section(name, entry))
            self.entries.broken.add(current_section(name))


def _outdented(section: str, following: Sequence[Entry]) -> Sequence[Entry]:
    """Return the keys after an empty section that are meant in it; none if one has a meaning where it is."""
    names = [normal(entry.key) for entry in following]
    end = next((end for end, name in enumerate(names) if not is_known(f"{section}.{name}")), len(names))
    return () if any(map(is_known, names[:end])) else following[:end]


def _sections_around(name: str) -> list[str]:
    """Return the sections that contain a dotted name, outermost first."""
    parts = name.split(".")[:-1]
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def _two_spellings(first: Place, entry: Entry) -> str:
    """Name the two spellings of a parameter if they differ by more than `-` and `_`; else return ""."""
    before = normal(first.written.strip("\"'"))
    now = normal(entry.key)
    return "" if before == now or first.file == SET else f", as {before} and as {now}"


def _malformed(argument: str, where: Place) -> Problem:
    key, colon, value = argument.partition(":")
    example = f"{argument.strip() or 'num_layers'}=VALUE"
    if argument.lstrip().startswith("="):
        example = f"KEY={argument.strip(' =') or 'VALUE'}"
    elif colon and key.strip():
        example = f"{key.strip()}={value.strip()}"
    where = where._replace(width=len(argument) or 1)
    return Problem("--set needs KEY=VALUE", where, f"write --set {example}", id="set-without-value")


def _not_a_section(name: str, entry: Entry) -> Problem:
    group = REGISTRY.sections[name]
    keys = list(group.parameters) if group else []
    keys += [full.rpartition(".")[2] for full in REGISTRY.sections if full.rpartition(".")[0] == name]
    hint, kind = f"write `{entry.key}: {{KEY: VALUE}}` with keys such as {', '.join(keys[:8])}", "a list"
    if isinstance(entry.value, Scalar):
        kind, meant = "a single value", "enabled" if "enabled" in keys else "type"
        if meant in keys and isinstance(entry.value.value, bool if meant == "enabled" else str):
            hint = f"write `{entry.key}: {{{meant}: {entry.value.text}}}`"
    what = f"{name} ({format_node(entry.value)}) must be a section with keys, not {kind}"
    return Problem(what, entry.value.place, hint, id="not-a-section", about=(current_section(name),))


def _in_each_file(first: Entry, entry: Entry) -> bool:
    """Return whether two files say the same, as of the dialect that each of them was written for."""
    return first.place.file != entry.place.file and first.value.to_python() == entry.value.to_python()
