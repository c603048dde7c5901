"""A key that is no parameter: what was probably meant by it, and the problem that says so.

Looked for in the order of `FINDERS`; a finder is a function from a `Key` to a `Match`, or None.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from neoxargs.problems import Place, Problem, close_matches, listed
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve.keys import other_programs
from neoxargs.resolve.keys.letters import wrong_letters
from neoxargs.resolve.keys.match import Key, Match, keys_of
from neoxargs.resolve.keys.other_programs import OtherKey
from neoxargs.resolve.keys.similar import same_word, similar_anywhere, similar_here

#: What to do with a key that no parameter is like.
NO_MATCH = (
    "GPT-NeoX and DeepSpeed have no such parameter: remove it, or declare it in a plugin (see docs/parameters.md)"
)


def match_key(key: Key) -> Match | None:
    """What was probably meant by a key; None where nothing is known to be like it."""
    return next((match for finder in FINDERS if (match := finder(key))), None)


def unknown_key(key: Key, match: Match | None) -> Problem:
    """The problem of a key that is no parameter, with what was probably meant."""
    return replace(unexplained_key(key), hint=key_advice(key, match), about=match.meant if match else ())


def key_advice(key: Key, match: Match | None) -> str:
    """What to do with a key that is no parameter."""
    return match.advice if match else _legal_keys(key.section) or NO_MATCH


def unexplained_key(key: Key) -> Problem:
    """The same without a thought about what was meant."""
    written = _printable(key.written)
    if key.section in REGISTRY.sections:
        what = f"{key.section} has no key {written.rpartition('.')[2]}"
    else:
        what = f"{written} is not a {'section' if key.is_section else 'parameter'}"
    return Problem(what, key.where, id="unknown-key")


def unknown_beside(key: Key, match: Match, name: str, first: Place) -> Problem:
    """The problem of a key where the parameter that it probably means is written as well, first there."""
    is_guess = bool(match.spelling) and not key.section and not key.is_section
    if is_guess and not close_matches(normal(key.written), [match.spelling], alike=0.85):  # two keys, not one misspelt
        return unknown_key(key, None)
    return replace(unknown_key(key, match), hint=written_twice(name), also=(first,))


def written_twice(name: str) -> str:
    """What to do where a parameter is written and probably meant a second time."""
    return f"did you mean {name}? it is already set: remove one of the two"


def _another_programs(key: Key) -> Match | None:
    """A key of another program, which stands at the top level."""
    if key.section:
        return None
    other = other_programs.find(key.word)
    meant = (other.counterpart,) if other and other.counterpart else ()
    return Match("other program", _instead(other), meant) if other else None


def _instead(other: OtherKey) -> str:
    """Whose key it is and what says the same here."""
    advice = f"use {other.counterpart} instead ({_brief(other.counterpart)})" if other.counterpart else other.advice
    if not other.programs:
        return advice
    whose = f"it is a parameter of {listed(dict.fromkeys(other.programs), 'and')}"
    if advice:
        return f"{whose}: {advice}"
    if other.is_forks:
        return f"{whose}: remove it, or declare it in a plugin for that fork's script"
    return f"{whose} and has no counterpart in deepy: remove it"


def _brief(name: str) -> str:
    return REGISTRY.parameters[name].brief


def _printable(written: str) -> str:
    return written if re.fullmatch(r"[\w.-]+", written) else json.dumps(written, ensure_ascii=False)


def _legal_keys(section: str) -> str:
    keys = keys_of(section) if section else {}
    return f"valid keys: {listed(keys, 'and')}" if keys else ""


FINDERS = (wrong_letters, _another_programs, same_word, similar_here, similar_anywhere)
