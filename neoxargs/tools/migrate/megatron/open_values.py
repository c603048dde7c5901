"""Values that the script does not have: variables that only a run sets, and placeholders for a person to replace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from neoxargs.problems import Problem, listed
from neoxargs.tools.migrate.megatron.flags import TAKES_MANY, is_switch
from neoxargs.tools.migrate.megatron.reading import Option, Reading
from neoxargs.tools.migrate.shell.script import variables
from neoxargs.tools.migrate.shell.words import Word


def unset_variables(options: Iterable[Option]) -> Iterator[Problem]:
    """Each variable that the script does not set, once."""
    needing: dict[str, list[tuple[Option, Word]]] = {}
    for option in options:
        for name, words in variables(option.words).items():
            needing.setdefault(name, []).append((option, words[0]))
    for name, needs in needing.items():
        flags = listed(dict.fromkeys(f"--{option.name}" for option, _ in needs), "and")
        what = f"the script does not say what {name} is, for {flags}"
        plain = name.strip("${}")
        is_name = plain.isalnum() or plain.isidentifier()
        hint = f"add --var {plain}=VALUE" if is_name else "write it into the new file"
        yield Problem(what, needs[0][1].place, hint, severity="warning", id="migrate-variable-unset")


def without_remarks(reading: Reading, option: Option) -> Option:
    """The option without placeholders for further flags (`--bf16 <other flags>`), of which is told."""
    if option.name in TAKES_MANY:
        return option
    wanted = 0 if is_switch(option.name) else 1
    remarks = [word for word in option.values[wanted:] if word.is_placeholder]
    for word in remarks:
        what = f"{word.text} behind --{option.name} is a placeholder"
        reading.warn("migrate-placeholder", what, word.place, "write what it stands for into the new file")
        reading.to_do.append(f"To do: write what {word.text} behind --{option.name} stands for.")
    return option._replace(values=[word for word in option.values if word not in remarks])


def leave_placeholder(reading: Reading, option: Option, names: Sequence[str]) -> None:
    """Say that a flag has a placeholder in place of a value, and leave its parameters for a person to write."""
    place = next(word.place for word in option.values if word.is_placeholder)
    hint = f"write {listed(names, 'and')} into the new file" if names else "write what it stands for into the new file"
    reading.warn("migrate-placeholder", f"{option} has a placeholder", place, hint, names)
    for name in names or ["what it stands for"]:
        reading.note_to_write(option, name)
