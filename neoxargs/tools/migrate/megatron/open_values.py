"""Values that the script does not contain: unset variables, and placeholders that the user has to replace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from neoxargs.problems import Problem, listed
from neoxargs.tools.migrate.megatron.flags import TAKES_MANY, is_switch
from neoxargs.tools.migrate.megatron.reading import Option, Reading
from neoxargs.tools.migrate.shell.words import Word

_UNKNOWN = re.compile(r"\$\{[^}]*\}|\$\([^)]*\)|\$\w+|`[^`]*`")


def unset_variables(options: Iterable[Option]) -> Iterator[Problem]:
    """Yield one warning for each variable that the script uses but does not set."""
    users: dict[str, list[tuple[Option, Word]]] = {}
    for option in options:
        for name, words in _variables(option.words).items():
            users.setdefault(name, []).append((option, words[0]))
    for name, uses in users.items():
        flags = listed(dict.fromkeys(f"--{option.name}" for option, _ in uses), "and")
        what = f"the value of {name} is unknown, so {flags} cannot be converted"
        plain = name.strip("${}")
        is_name = plain.isalnum() or plain.isidentifier()
        hint = f"add --var {plain}=VALUE" if is_name else "set the parameter in the new file"
        yield Problem(what, uses[0][1].place, hint, severity="warning", id="migrate-variable-unset")


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
        for name in _UNKNOWN.findall(word.text):
            users.setdefault(name, []).append(word)
    return users
