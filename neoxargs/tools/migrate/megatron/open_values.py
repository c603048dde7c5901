"""Values that the script does not contain: unset variables, and placeholders that the user has to replace."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import takewhile

from neoxargs.problems import Problem, listed
from neoxargs.resolve.yaml.nodes import read_plain
from neoxargs.tools.migrate.megatron.flags import TAKES_MANY, is_read, is_switch
from neoxargs.tools.migrate.megatron.reading import Option, Reading
from neoxargs.tools.migrate.shell.arithmetic import COMMAND, SUM
from neoxargs.tools.migrate.shell.words import Word

_UNKNOWN = re.compile(rf"\$\{{[^}}]*\}}|{SUM.pattern}|{COMMAND.pattern}|\$\([^)]*\)|\$\w+")
#: Names of variables that contain flags rather than the value of one.
_FLAGS = re.compile(r"args|flags|opts|options|extra", re.IGNORECASE)


def unset_variables(options: Iterable[Option], unset: Container[str]) -> Iterator[Problem]:
    """Yield one warning for each unknown value. unset: the variables that the script uses but does not set."""
    users: dict[str, list[tuple[Option, Word]]] = {}
    for option in options:
        for name, words in _variables(option.words).items():
            users.setdefault(name, []).append((option, words[0]))
    for name, uses in users.items():
        flags = listed(dict.fromkeys(f"--{option.name}" for option, _ in uses), "and")
        what = f"the value of {name} is unknown, so {flags} cannot be converted"
        hint = _options_to_add(name, unset) or "set the parameter in the new file"
        yield Problem(what, uses[0][1].place, hint, severity="warning", id="migrate-variable-unset")


def _options_to_add(text: str, unset: Container[str]) -> str:
    """Return which `--var` options would make an expansion known; empty if none would."""
    if COMMAND.match(text) and not SUM.match(text):
        return ""
    names = [name for name in dict.fromkeys(re.findall(r"\w+", text)) if name in unset]
    return f"add {' '.join(f'--var {name}=VALUE' for name in names)}" if names else ""


def leave_further_flags(reading: Reading, before: Sequence[Word], unset: Container[str]) -> None:
    """Remove unknown variables that contain further flags, as in `--bf16 $EXTRA_ARGS`, and warn about them.

    before: the words before the first flag. unset: as in `unset_variables`.
    """
    further = {word.text: word for word in before if _is_unknown(word)}
    for name, option in reading.options.items():
        begin = len(option.values) - len(_further_flags(option))
        further |= {word.text: word for word in option.values[begin:]}
        reading.options[name] = option._replace(values=option.values[:begin])
    reading.has_unknown_flags = bool(further)
    for text, word in further.items():
        shown = " ".join(text.split())  # a command substitution can have several lines
        hint = _options_to_add(text, unset) or "add the settings of these flags to the new file"
        reading.warn("migrate-variable-unset", f"the flags in {shown} are unknown and are left out", word.place, hint)
        reading.to_do.append(f"TODO: add the settings of the flags in {shown}, which are unknown.")


def _further_flags(option: Option) -> Sequence[Word]:
    """Return the unknown variables at the end of a flag's values that are not values of this flag."""
    if option.name in TAKES_MANY:
        return _after_paths(option.values)
    takes_none = is_switch(option.name) if is_read(option.name) else _FLAGS.search(option.text)
    return list(takewhile(_is_unknown, reversed(option.values[0 if takes_none else 1 :])))


def _after_paths(words: Sequence[Word]) -> Sequence[Word]:
    """Return the unknown variables after one known path, or after known pairs of a weight and a path."""
    known = list(takewhile(lambda word: not _is_unknown(word), words))
    rest = words[len(known) :]
    has_weights = bool(known) and isinstance(read_plain(known[0].text), int | float)
    is_complete = len(known) % 2 == 0 and len(rest) % 2 == 1 if has_weights else len(known) == 1
    return rest if known and is_complete and all(map(_is_unknown, rest)) else []


def _is_unknown(word: Word) -> bool:
    return _UNKNOWN.fullmatch(word.text) is not None


def without_remarks(reading: Reading, option: Option) -> Option:
    """Remove placeholders for further flags, as in `--bf16 <other flags>`, and warn about them."""
    if option.name in TAKES_MANY:
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


def _variables(words: Iterable[Word]) -> dict[str, list[Word]]:
    """Return the unexpanded variables and command substitutions in the words, each with the words that have it."""
    users: dict[str, list[Word]] = {}
    for word in words:
        for match in _UNKNOWN.finditer(word.text):
            users.setdefault(match[0], []).append(word)
    return users
