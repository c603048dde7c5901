"""Values that the script does not contain: unset variables, and placeholders that the user has to replace."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import takewhile

from neoxargs.base.problems import Place, Problem, listed
from neoxargs.migrate.megatron.flags import is_read, is_switch, takes_many
from neoxargs.migrate.megatron.reading import Option, Reading
from neoxargs.migrate.shell.script import RUN_IT
from neoxargs.migrate.shell.values import Unknown, Word
from neoxargs.resolve.yaml.nodes import read_plain

#: Names of variables that contain flags rather than the value of one.
_FLAGS = re.compile(r"args|flags|opts|options|extra", re.IGNORECASE)


def unset_variables(options: Iterable[Option], unset: Container[str]) -> Iterator[Problem]:
    """Yield one warning for each unknown value, or for all that are unknown for the same reason.

    What depends on a condition or loop that is not known is an error. unset: the variables that the script uses but
    does not set.
    """
    users: dict[object, list[tuple[Option, Word, Unknown]]] = {}
    for option in options:
        for word in option.words:
            for unknown in word.unknowns:
                users.setdefault(unknown.where or unknown.why or str(unknown), []).append((option, word, unknown))
    for uses in users.values():
        flags = listed(dict.fromkeys(f"--{option.name}" for option, _, _ in uses), "and", most=99)
        shown = list(dict.fromkeys(unknown for _, _, unknown in uses))
        if uses[0][2].where:
            yield undecided(uses[0][2].where, flags, [unknown for _, _, unknown in uses], unset)
            continue
        why = uses[0][2].why and f", because {uses[0][2].why}"
        what = f"the value of {shown[0]} is unknown{why}, so {flags} cannot be converted"
        if len(shown) > 1:
            each = f", because each {uses[0][2].why.removeprefix('it ')}"
            what = f"the values of {listed(shown, 'and', most=99)} are unknown{each}, so {flags} cannot be converted"
        hint = _options_to_add((unknown for _, _, unknown in uses), unset) or "set the parameter in the new file"
        yield Problem(what, uses[0][1].place, hint, severity="warning", id="migrate-variable-unset")


def undecided(where: Place, flags: str, unknowns: Iterable[Unknown], unset: Container[str]) -> Problem:
    """Return the error for what depends on a condition or loop of the script. flags: what that is, plural."""
    what = f"{flags} depend on this condition or loop, which is not known without running the script"
    hint = "; or, ".join(filter(None, (_options_to_add(unknowns, unset), RUN_IT)))
    return Problem(what, where, hint, id="migrate-branch-unknown")


def _options_to_add(unknowns: Iterable[Unknown], unset: Container[str]) -> str:
    """Return which `--var` options would make these known; empty if none would."""
    names = dict.fromkeys(name for unknown in unknowns for name in unknown.names if name in unset)
    return f"add {' '.join(f'--var {name}=VALUE' for name in names)}" if names else ""


def leave_further_flags(reading: Reading, before: Sequence[Word], unset: Container[str]) -> None:
    """Remove unknown variables that contain further flags, as in `--bf16 $EXTRA_ARGS`, and warn about them.

    before: the words before the first flag. unset: as in `unset_variables`.
    """
    further = {word.text: word for word in before if word.is_unknown}
    for name, option in reading.options.items():
        begin = len(option.values) - len(_further_flags(option))
        further |= {word.text: word for word in option.values[begin:]}
        reading.options[name] = option._replace(values=option.values[:begin])
    reading.has_unknown_flags = bool(further)
    for text, word in further.items():
        shown = " ".join(text.split())  # a command substitution can have several lines
        if where := next((each.where for each in word.unknowns if each.where), None):
            reading.problems.append(undecided(where, f"the flags in {shown}", word.unknowns, unset))
            continue
        hint = _options_to_add(word.unknowns, unset) or "add the settings of these flags to the new file"
        why = "".join(dict.fromkeys(f", because {each.why}" for each in word.unknowns if each.why))
        what = f"the flags in {shown} are unknown{why} and are left out"
        reading.warn("migrate-variable-unset", what, word.place, hint)
        reading.to_do.append(f"TODO: add the settings of the flags in {shown}, which are unknown.")


def _further_flags(option: Option) -> Sequence[Word]:
    """Return the unknown variables at the end of a flag's values that are not values of this flag."""
    if takes_many(option.name):
        return _after_paths(option.values)
    takes_none = is_switch(option.name) if is_read(option.name) else _FLAGS.search(option.text)
    return list(takewhile(lambda word: word.is_unknown, reversed(option.values[0 if takes_none else 1 :])))


def _after_paths(words: Sequence[Word]) -> Sequence[Word]:
    """Return the unknown variables after one known path, or after known pairs of a weight and a path."""
    known = list(takewhile(lambda word: not word.is_unknown, words))
    rest = words[len(known) :]
    has_weights = bool(known) and isinstance(read_plain(known[0].text), int | float)
    is_complete = len(known) % 2 == 0 and len(rest) % 2 == 1 if has_weights else len(known) == 1
    return rest if known and is_complete and all(word.is_unknown for word in rest) else []


def without_remarks(reading: Reading, option: Option) -> Option:
    """Remove placeholders for further flags, as in `--bf16 <other flags>`, and warn about them."""
    if takes_many(option.name):
        return option
    wanted = 0 if is_switch(option.name) else 1
    remarks = [word for word in option.values[wanted:] if word.is_placeholder]
    for word in remarks:
        what = f"{word.text} after --{option.name} is a placeholder"
        reading.warn(
            "migrate-placeholder", what, word.place, "in the new file, add the settings that the placeholder stands for"
        )
        reading.to_do.append(
            f"TODO: add the settings that the placeholder {word.text} (after --{option.name}) stands for."
        )
    return option._replace(values=[word for word in option.values if word not in remarks])


def leave_placeholder(reading: Reading, option: Option, names: Sequence[str]) -> None:
    """Warn that a flag has a placeholder instead of a value, and list its parameters as still to be set."""
    place = next(word.place for word in option.values if word.is_placeholder)
    hint = f"set {listed(names, 'and') if names else 'the corresponding parameter'} in the new file"
    reading.warn("migrate-placeholder", f"{option} has a placeholder instead of a value", place, hint, names)
    for name in names or ["the corresponding parameter"]:
        reading.note_to_write(option, name)
