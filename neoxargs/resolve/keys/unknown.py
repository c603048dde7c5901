"""The problem of a key that is not a parameter, with a suggestion.

`FINDERS` are tried in order; a finder returns a `Match` for a `Key`, or None.
"""

from __future__ import annotations

import json
import re

from neoxargs.base.problems import Place, Problem, close_matches, listed
from neoxargs.base.record import replace
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve.keys import other_programs
from neoxargs.resolve.keys.letters import wrong_letters
from neoxargs.resolve.keys.match import Key, Match, keys_of
from neoxargs.resolve.keys.misplaced import holder_advice
from neoxargs.resolve.keys.other_programs import OtherKey
from neoxargs.resolve.keys.similar import same_word, similar_anywhere, similar_here

#: The hint for a key without a match.
NO_MATCH = (
    "GPT-NeoX and DeepSpeed have no such parameter: remove the key (docs/parameters.md lists all parameters), or "
    "declare the parameter in a plugin (docs/extending.md)"
)


def match_key(key: Key) -> Match | None:
    """Return what a key was probably meant to be; None if nothing matches."""
    # A flag copied from a command line, such as `--num-layers`, is searched without its dashes.
    bare, stripped = key, key.written.lstrip("-")
    if stripped not in ("", key.written):
        section = f"{key.section}." if key.section else ""
        bare = replace(key, name=section + normal(stripped), written=stripped)
    if bare != key and (parameter := REGISTRY.find(bare.name)):
        advice = f"write `{bare.written}` without the `{key.written.removesuffix(bare.written)}`"
        return Match("letters", advice, (parameter.name,))
    return next((match for finder in FINDERS if (match := finder(bare))), None)


def unknown_key(key: Key, match: Match | None) -> Problem:
    """Return the problem of an unknown key, with a suggestion."""
    return replace(unexplained_key(key), hint=key_advice(key, match), about=match.meant if match else ())


def key_advice(key: Key, match: Match | None) -> str:
    """Return the hint for an unknown key."""
    holder = "" if key.section else holder_advice(key.written, key.where)
    if match:
        return f"{match.advice}; {holder}" if holder else match.advice
    if holder:
        return holder
    keys = keys_of(key.section) if key.section else {}
    return f"valid keys: {listed(keys, 'and')}" if keys else NO_MATCH


def unexplained_key(key: Key) -> Problem:
    """Return the problem of an unknown key, without a suggestion."""
    if key.section in REGISTRY.sections:
        what = f"{key.section} has no key {_printable(key.written.rpartition('.')[2])}"
    else:
        what = f"{_printable(key.written)} is not a {'section' if key.is_section else 'parameter'}"
    return Problem(what, key.where, id="unknown-key")


def unknown_beside(key: Key, match: Match, name: str, first: Place) -> Problem:
    """Return the problem of an unknown key whose suggested parameter is also set, at `first`."""
    is_guess = bool(match.spelling) and not key.section and not key.is_section
    # with the parameter already set, a key that is not very similar is probably a different one, not a misspelling
    if is_guess and not close_matches(normal(key.written), [match.spelling], alike=0.85):
        return unknown_key(key, None)
    return replace(unknown_key(key, match), hint=_advice_beside(key, match, name), also=(first,))


def _advice_beside(key: Key, match: Match, name: str) -> str:
    if match.found_by == "other program":
        return f"{match.advice}; {name} is already set: remove {_printable(key.written)}"
    is_old_name = match.spelling not in ("", name.rpartition(".")[2])
    return written_twice(name, match.advice if is_old_name else "")


def written_twice(name: str, question: str = "") -> str:
    """Return the hint for a parameter that is set and probably meant a second time. question: "did you mean ...?"."""
    return f"{question or f'did you mean {name}?'} {name} is already set: remove one of the two keys"


def _another_programs(key: Key) -> Match | None:
    """Match a top-level key of another program."""
    if key.section:
        return None
    other = other_programs.find(key.word)
    meant = (other.counterpart,) if other and other.counterpart else ()
    return Match("other program", _instead(other), meant) if other else None


def _inside_a_value(key: Key) -> Match | None:
    """Match a key in the value of a parameter that is a mapping: `validation.code.weight`."""
    parts = key.name.split(".")
    for end in range(1, len(parts)):
        parameter = REGISTRY.find(".".join(parts[:end]))
        if parameter and "dict" in parameter.annotation:
            whole = f"--set '{parameter.name}={{KEY: VALUE}}'"
            advice = f"the value of {parameter.name} can only be set as a whole, in a file or with {whole}"
            advice += f"; `deepy explain {parameter.name}` describes it"
            return Match("inside a value", advice, (parameter.name,))
    return None


def _instead(other: OtherKey) -> str:
    """Return the hint for another program's key: the program, and what to do instead."""
    ours = REGISTRY.parameters[other.counterpart] if other.counterpart else None
    advice = f"use {ours.name} instead ({ours.brief})" if ours else other.advice
    if not other.programs:
        return advice
    whose = f"this is a parameter of {listed(dict.fromkeys(other.programs), 'and')}"
    if advice:
        return f"{whose}: {advice}"
    if other.is_forks:
        return f"{whose}: remove it, or, if you launch a fork's own script, declare it in a plugin"
    return f"{whose} and has no equivalent in deepy: remove it"


def _printable(written: str) -> str:
    return written if re.fullmatch(r"[\w.-]+", written) else json.dumps(written, ensure_ascii=False)


def _similar_of_another_program(key: Key) -> Match | None:
    """Match a misspelt top-level key of another program: `lerning_rate`."""
    found = [] if key.section or key.is_section else other_programs.similar(key.word)
    if not found or not (meant := other_programs.counterpart(found[0])):
        return None
    return Match("similar", f"did you mean {found[0]}, which is {meant} in deepy?", (meant,))


#: From the most certain to the least certain.
FINDERS = (
    _inside_a_value, wrong_letters, _another_programs, same_word, similar_here, similar_anywhere,
    _similar_of_another_program,
)  # fmt: skip
