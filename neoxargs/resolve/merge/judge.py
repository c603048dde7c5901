"""Third pass: the keys that are not parameters: unknown, misplaced, or of another program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from neoxargs.base.problems import Problem
from neoxargs.base.record import replace
from neoxargs.registry import REGISTRY
from neoxargs.resolve.keys.corrections import indented, key_edits, moved_to
from neoxargs.resolve.keys.match import Key, is_known
from neoxargs.resolve.keys.misplaced import (
    dotted_key,
    nested,
    outdented_key,
    parameters_in_unknown_section,
    unknown_section,
)
from neoxargs.resolve.keys.unknown import match_key, unexplained_key, unknown_beside, unknown_key, written_twice
from neoxargs.resolve.merge.entries import Entries, OddKey
from neoxargs.resolve.yaml.nodes import Mapping

#: Unknown keys with a suggestion at most; finding suggestions is slow, and such a file is not a configuration.
MAX_SUGGESTIONS = 200


class Judgement(NamedTuple):
    """The problem of a key, and the parameters or sections whose value is unknown because of it."""

    problem: Problem
    meant: tuple[str, ...] = ()


def judge(files: Entries, sets: Entries) -> list[Judgement]:
    """Return a judgement for each key that is no parameter, or not allowed where it is."""
    return [judgement for entries in (files, sets) if entries.odd for judgement in _certain([*_odd_keys(entries)])]


def _certain(judgements: list[Judgement]) -> Iterator[Judgement]:
    """Yield the judgements; of two keys that are meant to be one parameter, neither is corrected."""
    times = Counter(judgement.meant[:1] for judgement in judgements)
    for problem, meant in judgements:
        yield Judgement(problem if times[meant[:1]] == 1 else replace(problem, edits=()), meant)


def _odd_keys(entries: Entries) -> Iterator[Judgement]:
    for number, odd in enumerate(entries.odd):
        if odd.kind == "outdented":
            yield _outdented(odd)
        elif odd.kind == "dotted" and is_known(odd.name):
            yield _dotted(odd, entries)
        elif number < MAX_SUGGESTIONS:
            yield _unknown(odd, entries)
        else:
            yield Judgement(unexplained_key(_key(odd)))


def _key(odd: OddKey) -> Key:
    is_section = odd.kind == "unknown" and isinstance(odd.entry.value, Mapping)
    return Key(odd.name, odd.entry.key, odd.entry.place, is_section)


def _unknown(odd: OddKey, entries: Entries) -> Judgement:
    key = _key(odd)
    match = match_key(key)
    if match is None and (inside := parameters_in_unknown_section(odd.name, odd.entry)):
        return Judgement(unknown_section(odd.entry, inside), tuple(inside))
    if match and entries.kind == "file" and len(match.meant) == 1 and (first := entries.parameters.get(match.meant[0])):
        return Judgement(unknown_beside(key, match, match.meant[0], first.place), match.meant)
    problem = unknown_key(key, match)
    if match and odd.kind == "unknown":
        problem = replace(problem, edits=key_edits(key, match, odd.entry))
    if match and odd.kind == "dotted" and entries.kind == "file" and len(match.meant) == 1:
        hint = f"did you mean `{nested(match.meant[0])}`? dotted keys are allowed only in --set"
        problem = replace(problem, hint=hint)
    return Judgement(problem, match.meant if match else ())


def _outdented(odd: OddKey) -> Judgement:
    name = _current_name(odd.name)
    problem = outdented_key(name, odd.name.rpartition(".")[0], odd.entry)
    problem = replace(problem, edits=indented(name.rpartition(".")[0], odd.outdented))
    return Judgement(problem, (name, name.rpartition(".")[0]))


def _dotted(odd: OddKey, entries: Entries) -> Judgement:
    name = _current_name(odd.name)
    problem = replace(dotted_key(name, odd.entry), edits=moved_to(name, odd.entry))
    if first := entries.parameters.get(name):
        problem = replace(problem, hint=written_twice(name), also=(first.place,), edits=())
    return Judgement(problem, (name,))


def _current_name(name: str) -> str:
    """Return the current name of a parameter; a section is returned unchanged."""
    parameter = REGISTRY.find(name)
    return parameter.name if parameter else name
