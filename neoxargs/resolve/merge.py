"""All files and `--set`s in one table: registry name -> checked value and where it was written.

Files may not say the same thing twice; a `--set` overrides files and nothing else does.
"""

from __future__ import annotations

from collections.abc import Mapping as AnyMapping
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from neoxargs.problems import SET, Place, Problem, Problems, listed, near
from neoxargs.registry import REGISTRY, Group, Parameter, normal
from neoxargs.registry.history import NEWEST
from neoxargs.resolve.dialect import Dialect, inferred, named
from neoxargs.resolve.keys.foreign import said_elsewhere
from neoxargs.resolve.keys.unknown import NOBODYS, beside, grouped, is_known, of_the_top, outdented, stranger, unknown
from neoxargs.resolve.value import Source, Value
from neoxargs.resolve.values.coerce import Mismatch, conform
from neoxargs.resolve.yaml.compose import Text, compose, compose_set, twice
from neoxargs.resolve.yaml.nodes import Entry, Mapping, Node, Scalar, shown
from neoxargs.resolve.yaml.read import mapping

#: Of more unknown keys than this nobody wants to know what each was meant for, and finding it takes a while.
STRANGERS = 200
G = TypeVar("G", bound=Group)


@dataclass
class Draft:
    """What was written, checked one by one but not yet completed.

    values: only what was written, by registry name.
    sections: the sections written, even empty ones.
    auto: parameters written as `auto`, which counts as not written.
    broken: parameters (or sections) whose value is unknown because of a problem with it.
    section_places: where each section was begun.
    open_places: where `auto`, or nothing, was written for a value that a rule supplies.
    readable: False when a file is no YAML or has no keys, so that what is missing cannot be told.
    """

    values: dict[str, Value]
    sections: frozenset[str]
    problems: list[Problem]
    dialect: Dialect
    auto: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    readable: bool = True
    section_places: dict[str, Place] = field(default_factory=dict)
    open_places: dict[str, Place] = field(default_factory=dict)

    def group(self, cls: type[G]) -> G:
        """A group's written values over its defaults, before any rule has run."""
        known = {**self.dialect.defaults(), **self.values}
        return cls(**{p.attribute: known[p.name].value for p in cls.parameters.values() if p.name in known})


def draft(texts: Sequence[Text], overrides: Sequence[str] = ()) -> Draft:
    """Every file and every `--set` flattened, merged and checked; what is wrong is in `.problems`."""
    files, sets = _Layer("file"), _Layer("set")
    for text in texts:
        files.text(text)
    for argument in overrides:
        sets.argument(argument)
    values = {name: value for name, value in files.values.items() if name not in sets.auto | sets.nothing} | sets.values
    problems = files.told(values) + sets.told(values)
    dialect = named(values["dialect"]) if "dialect" in values else inferred({**files.spelled, **sets.spelled})
    if isinstance(dialect, Problem):
        problems.append(dialect)
        dialect = inferred(files.spelled)
    return Draft(
        values,
        frozenset({**files.sections, **sets.sections}),
        problems,
        dialect,
        frozenset((files.auto - set(sets.values)) | sets.auto),
        frozenset((files.broken | sets.broken) - set(values)),
        files.readable,
        {**files.sections, **sets.sections},
        {name: layer.first[name] for layer in (files, sets) for name in layer.auto | layer.nothing},
    )


def draft_of(tree: Mapping) -> Draft:
    """A tree that was not read from YAML, flattened and checked like a file; it speaks today's dialect."""
    layer = _Layer("file")
    layer.mapping(tree)
    return Draft(
        layer.values, frozenset(layer.sections), layer.told(layer.values), Dialect(NEWEST, "it is no file of GPT-NeoX"),
        frozenset(layer.auto), frozenset(layer.broken), True, layer.sections,
    )  # fmt: skip


@dataclass
class _Layer:
    """The files, or the `--set`s: within one layer a parameter is written once."""

    kind: Literal["file", "set"]
    values: dict[str, Value] = field(default_factory=dict)
    sections: dict[str, Place] = field(default_factory=dict)
    auto: set[str] = field(default_factory=set)
    nothing: set[str] = field(default_factory=set)
    """What is as if it were not written: null in a `--set`; in a file, where a rule supplies the value."""
    broken: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    first: dict[str, Place] = field(default_factory=dict)
    spelled: dict[str, Place] = field(default_factory=dict)
    doubled: set[str] = field(default_factory=set)
    readable: bool = True
    strangers: int = 0
    meant: dict[int, str] = field(default_factory=dict)
    """Number of a problem -> the one parameter that its key was probably meant for."""
    unfit: dict[int, str] = field(default_factory=dict)
    """Number of a problem -> the parameter whose value does not fit it."""

    def told(self, values: AnyMapping[str, Value]) -> list[Problem]:
        """The problems, with what only the whole of the files can tell: what was meant may stand there as well."""
        problems = list(self.problems)
        for number, name in self.meant.items():
            if first := self.first.get(name):
                problems[number] = beside(problems[number], name, first)
        for number, name in self.unfit.items():
            if other := _of_another_type(name, values):
                what, hint = other
                problems[number] = Problem(what, self.first[name], hint)
        return problems

    def text(self, text: Text) -> None:
        node, problems = compose(text)
        self.problems += problems
        try:
            if node is not None or not problems:
                self.mapping(mapping(node, Place(text.name, 0, 0)))
                return
        except Problems as stop:
            self.problems += stop.problems
        self.readable = False

    def argument(self, argument: str) -> None:
        key, equals, _ = argument.partition("=")
        where = Place(SET, 1, 1, argument, max(1, len(key.rstrip())))
        if not equals or not key.strip():
            self.problems.append(_malformed(argument, where))
            return
        node, problems = compose_set(argument, len(key) + 1)
        self.problems += problems
        name = normal(key.strip())
        if node is None and problems:
            self.broken.add(name)
            return
        for section in _above(name):
            if section in REGISTRY.sections:
                self.sections.setdefault(_present(section), where)
        self.entry(name, Entry(key.strip(), node or Scalar(None, ""), where), {})

    def mapping(self, node: Mapping, path: str = "") -> None:
        seen: dict[str, Place] = {}
        begun = ""
        for entry in node.entries:
            name = path + normal(entry.key)
            if "." in entry.key:
                self.unknown(_dotted(name, entry), name)
            elif begun and not is_known(name) and is_known(f"{begun}.{normal(entry.key)}"):
                self.unknown(outdented(begun, entry), f"{begun}.{normal(entry.key)}", begun)
                continue
            else:
                self.entry(name, entry, seen)
            is_empty = isinstance(entry.value, Scalar) and entry.value.value is None
            begun = name if is_empty and name in REGISTRY.sections else ""

    def entry(self, name: str, entry: Entry, seen: dict[str, Place]) -> None:
        self.spelled.setdefault(name, entry.place)
        if parameter := REGISTRY.find(name):
            self.leaf(parameter, entry)
        elif name in REGISTRY.sections:
            self.section(name, entry, seen)
        else:
            self.stranger(name, entry)

    def stranger(self, name: str, entry: Entry) -> None:
        self.strangers += 1
        if self.strangers > STRANGERS:
            self.problems.append(stranger(name, entry.place, entry.key, isinstance(entry.value, Mapping)))
            return
        problem, meant = unknown(name, entry.place, entry.key, isinstance(entry.value, Mapping))
        if problem.hint == NOBODYS and (inside := of_the_top(name, entry)):
            problem, meant = grouped(entry, inside), inside
        self.unknown(problem, *meant)

    def unknown(self, problem: Problem, *meant: str) -> None:
        if len(meant) == 1 and self.kind == "file":
            self.meant[len(self.problems)] = meant[0]
        self.problems.append(problem)
        self.broken.update(meant)

    def section(self, name: str, entry: Entry, seen: dict[str, Place]) -> None:
        first = seen.setdefault(name, entry.place)
        if first is not entry.place:
            self.problems.append(twice(name, entry.place, first))
            self.doubled.add(name)
        self.sections.setdefault(_present(name), entry.place)
        if isinstance(entry.value, Mapping):
            self.mapping(entry.value, name + ".")
        elif not (isinstance(entry.value, Scalar) and entry.value.value is None):
            self.problems.append(_not_a_section(name, entry))
            self.broken.add(name)

    def leaf(self, parameter: Parameter, entry: Entry) -> None:
        name, node = parameter.name, entry.value
        first = self.first.setdefault(name, entry.place)
        if first is not entry.place:
            if self.doubled.isdisjoint(_above(name)):  # of a section that is given twice, that says all
                self.problems.append(twice(name, entry.place, first, _respelled(first, entry)))
            return
        if _is_auto(parameter, node):
            self.auto.add(name)
            return
        try:
            value = conform(node, parameter.type)
        except Mismatch as bad:
            is_nothing = isinstance(node, Scalar) and node.value is None
            if is_nothing and (self.kind == "set" or parameter.derived or parameter.default == ""):
                self.nothing.add(name)
                return
            there = bad.node.place
            where = entry.place if not there.text or there.text.isspace() else there
            hint = said_elsewhere(name, node.plain()) if isinstance(node, Scalar) else ""
            if is_nothing and not parameter.required:
                hint = f"leave {name} out for its default"
            self.unfit[len(self.problems)] = name
            self.problems.append(Problem(bad.sentence(name), where, hint or bad.advice))
            self.broken.add(name)
            return
        self.values[name] = Value(value, Source(self.kind, _span(entry)))


def _of_another_type(name: str, values: AnyMapping[str, Value]) -> tuple[str, str] | None:
    """What to say (and to write) of a setting that the written optimizer or scheduler does not have."""
    section, parameter = name.partition(".")[0], REGISTRY.parameters[name]
    value = values.get(f"{section}.type") or values.get(f"{section}_type")
    kind = value and value.value
    if not parameter.used_by_types or not kind or kind.lower() in parameter.used_by_types:
        return None
    own = [p.attribute for p in parameter.group.parameters.values() if kind.lower() in p.used_by_types]
    what = f"{name} is not a setting of {section}.type {kind}"
    meant = near(parameter.attribute, own)
    return what, f"did you mean {listed(meant)}?" if meant else f"{kind} has {listed(own, 'and')}"


def _malformed(argument: str, where: Place) -> Problem:
    key, colon, value = argument.partition(":")
    name = argument.strip(" =") or "num_layers"
    example = f"{key.strip()}={value.strip()}" if colon and key.strip() else f"{name}=VALUE"
    return Problem("a --set is key=value", where._replace(width=len(argument) or 1), f"write --set {example}")


def _above(name: str) -> list[str]:
    """The sections a dotted name lies in, outermost first."""
    parts = name.split(".")[:-1]
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def _present(section: str) -> str:
    """Today's name of a section."""
    group = REGISTRY.sections[section]
    return group.section if group else section


def _dotted(name: str, entry: Entry) -> Problem:
    if REGISTRY.find(name) or name in REGISTRY.sections:
        *sections, last = entry.key.split(".")
        nested = "".join(f"{section}: {{" for section in sections) + f"{last}: …" + "}" * len(sections)
        return Problem("a dot names a nested key only in --set", entry.place, f"in a file write `{nested}`")
    return unknown(name, entry.place, entry.key)[0]


def _not_a_section(name: str, entry: Entry) -> Problem:
    group = REGISTRY.sections[name]
    keys = list(group.parameters) if group else []
    keys += [full.rpartition(".")[2] for full in REGISTRY.sections if full.rpartition(".")[0] == name]
    what = f"{name} is a section with keys of its own, not one value ({shown(entry.value)})"
    if "enabled" in keys and isinstance(entry.value, Scalar) and isinstance(entry.value.value, bool):
        return Problem(what, entry.value.place, f"write `{entry.key}: {{enabled: {entry.value.text}}}`")
    return Problem(what, entry.value.place, f"its keys: {', '.join(keys[:8])}{' …' * (len(keys) > 8)}")


def _respelled(first: Place, entry: Entry) -> str:
    """Tell the two spellings of one parameter apart where they differ by more than `-` and `_`."""
    before = normal(first.text[first.column - 1 :][: first.width].strip("\"'"))
    now = normal(entry.key)
    return "" if before == now or first.file == SET else f", as {before} and as {now}"


def _is_auto(parameter: Parameter, node: Node) -> bool:
    """`auto` in DeepSpeed's part leaves the value to us; where a parameter has it as a choice, it is one."""
    if "DSC" not in parameter.origins or not isinstance(node, Scalar) or node.value != "auto":
        return False
    return "auto" not in _choices(parameter.type)


def _choices(wanted: Any) -> set[Any]:
    arguments = get_args(wanted)
    return {a for a in arguments if isinstance(a, str)}.union(*(_choices(a) for a in arguments))


def _span(entry: Entry) -> Place:
    """From the key to the end of a value on the same line."""
    key, value = entry.place, entry.value.place
    if key.file == SET:
        return key._replace(width=len(key.text))
    if isinstance(entry.value, Scalar) and value.line == key.line and value.text and value.column > key.column:
        return key._replace(width=value.column + value.width - key.column)
    return key
