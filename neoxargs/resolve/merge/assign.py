"""Second pass: one value for each parameter that is set; only a `--set` overrides files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from neoxargs.base.problems import SET, Edit, Place, Problem, close_matches, listed
from neoxargs.config.dialect import Dialect, inferred, named
from neoxargs.config.value import Source, Value
from neoxargs.registry import REGISTRY, Parameter
from neoxargs.registry.types import choices_of
from neoxargs.resolve.keys.corrections import value_edits
from neoxargs.resolve.keys.other_programs import value_advice
from neoxargs.resolve.merge.entries import Entries
from neoxargs.resolve.values.coerce import Mismatch, coerce
from neoxargs.resolve.yaml.nodes import Entry, Node, Scalar, is_null


class Assigned(NamedTuple):
    """The values of the files and `--set`s.

    values: by registry name.
    auto: parameters set to `auto`, which counts as not set.
    open_places: places of `auto` and null, for values that a rule supplies.
    broken: parameters whose value does not match their type.
    """

    values: dict[str, Value]
    dialect: Dialect
    auto: frozenset[str]
    open_places: dict[str, Place]
    broken: frozenset[str]
    problems: list[Problem]


class _Layer:
    """The values of the files, or of the `--set`s.

    unset: parameters that count as not set: null in a `--set`, or in a file where null is a value of GPT-NeoX.
    """

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.auto: set[str] = set()
        self.unset: set[str] = set()
        self.mismatches: dict[str, Mismatch] = {}


def assign(files: Entries, sets: Entries, dialect: Dialect | None = None) -> Assigned:
    """Return the values of both, each checked against the type of its parameter.

    dialect: if known; otherwise it comes from `dialect:` or is inferred from the keys.
    """
    lower, upper = _layer(files), _layer(sets)
    # `--set KEY=null` and `--set KEY=auto` remove the value of a file, and so does one of a wrong type.
    overridden = upper.auto | upper.unset | upper.mismatches.keys()
    not_overridden = {name: value for name, value in lower.values.items() if name not in overridden}
    values = {**not_overridden, **upper.values}
    problems = [
        _misfit(name, mismatch, entries.parameters[name], values)
        for entries, layer in ((files, lower), (sets, upper))
        for name, mismatch in layer.mismatches.items()
    ]
    chosen = dialect or _dialect(files, sets, values)
    if isinstance(chosen, Problem):
        problems.append(chosen)
        chosen = inferred(files.spelled)
    return Assigned(
        values=values,
        dialect=chosen,
        auto=frozenset((lower.auto - set(upper.values)) | upper.auto),
        open_places=_open_places(files, lower) | _open_places(sets, upper),
        broken=frozenset({*lower.mismatches, *upper.mismatches} - set(values)),
        problems=problems,
    )


@lru_cache(maxsize=4)  # a search merges the same files with hundreds of overrides
def _layer(entries: Entries) -> _Layer:
    layer = _Layer()
    for name, entry in entries.parameters.items():
        parameter = REGISTRY.parameters[name]
        if _is_auto(parameter, entry.value):
            layer.auto.add(name)
            continue
        try:
            layer.values[name] = Value(coerce(entry.value, parameter.type), Source(entries.kind, _span(entry)))
        except Mismatch as mismatch:
            if is_null(entry.value) and (entries.kind == "set" or _may_be_null(parameter)):
                layer.unset.add(name)
            else:
                layer.mismatches[name] = mismatch
    return layer


def _may_be_null(parameter: Parameter) -> bool:
    """True if null in a file means "not set": for values that a rule supplies, and for GPT-NeoX's launcher settings."""
    return parameter.derived or parameter.default == "" or "DSL" in parameter.origins


def _open_places(entries: Entries, layer: _Layer) -> dict[str, Place]:
    return {name: entries.parameters[name].place for name in layer.auto | layer.unset}


def _dialect(files: Entries, sets: Entries, values: Mapping[str, Value]) -> Dialect | Problem:
    return named(values["dialect"]) if "dialect" in values else inferred({**files.spelled, **sets.spelled})


def _is_auto(parameter: Parameter, node: Node) -> bool:
    """True if `auto` means "not set": for parameters of DeepSpeed's JSON that do not have `auto` as a choice."""
    if "DSC" not in parameter.origins or not isinstance(node, Scalar) or node.value != "auto":
        return False
    return "auto" not in choices_of(parameter.type)


def _span(entry: Entry) -> Place:
    """Return the range from the key to the end of a value on the same line."""
    key, value = entry.place, entry.value.place
    if key.file == SET:  # the whole argument
        return key._replace(width=len(key.text))
    if isinstance(entry.value, Scalar) and value.line == key.line and value.text and value.column > key.column:
        return key._replace(width=value.column + value.width - key.column)
    return key


def _misfit(name: str, mismatch: Mismatch, entry: Entry, values: Mapping[str, Value]) -> Problem:
    """Return the problem of a value of a wrong type, or of a setting that the optimizer or scheduler does not have."""
    # Instead of the type: a value copied with another optimizer's setting is not worth correcting.
    if problem := _of_another_type(name, entry.place, values):
        return problem
    value_place = mismatch.node.place
    where = entry.place if not value_place.text or value_place.text.isspace() else value_place
    hint = value_advice(name, entry.value.to_python()) if isinstance(entry.value, Scalar) else ""
    edits = () if hint else value_edits(entry, mismatch)
    if is_null(entry.value) and not REGISTRY.parameters[name].required:
        hint, edits = f"remove {name} to use its default", (Edit(entry.place, "remove", safe=False),)
    return Problem(
        mismatch.sentence(name), where, hint or mismatch.advice, id="type-mismatch", about=(name,), edits=edits
    )


def _of_another_type(name: str, where: Place, values: Mapping[str, Value]) -> Problem | None:
    """Return a problem if the chosen type has no such setting, such as `optimizer.params.max_coeff` of Adam."""
    section, parameter = name.partition(".")[0], REGISTRY.parameters[name]
    value = values.get(f"{section}.type") or values.get(f"{section}_type")
    kind = value and value.value
    if not parameter.used_by_types or not kind or kind.lower() in parameter.used_by_types:
        return None
    own = _accepted(parameter, kind.lower())
    if not own:  # a plugin's type, or a misspelt one
        return None
    meant = close_matches(parameter.attribute, own)
    accepted = f"{kind} accepts {listed(own, 'and')}"
    hint = f"did you mean {listed(meant)}?" if meant else f"remove {parameter.attribute}; {accepted}"
    what = f"{section}.type ({kind}) does not accept {name}"
    return Problem(what, where, hint, id="setting-of-another-type", about=(name, f"{section}.type"))


def _accepted(parameter: Parameter, kind: str) -> list[str]:
    """Return the settings that a type has; none of an unknown type."""
    params = parameter.group.parameters.values()
    is_listed = any(kind in p.used_by_types for p in params)
    return [p.attribute for p in params if is_listed and kind in (p.used_by_types or (kind,))]
