"""The file of the fastest layout, and how to use it.

A parameter may be set in one file only. So if one of the user's files sets parts of a layout, the new file is a copy of
it with the fastest layout, to be passed in its place. If no file sets a layout, the new one is passed with the others.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Problems, listed, printable
from neoxargs.base.text import format_bytes, format_duration
from neoxargs.plan.advice.smaller import Changes, overrides_of
from neoxargs.plan.search.search import Result
from neoxargs.plan.search.subject import OTHER_NAMES
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve import Draft, File, draft
from neoxargs.resolve.yaml.edit import Document, yaml_value
from neoxargs.runs.run_spec import complete_run

#: What a layout without offloading sets for the optimizer; only written over another value.
NOT_OFFLOADED = ("zero_optimization.offload_optimizer.device", "none")


class Written(NamedTuple):
    """The new file, and the lines that tell how to use it."""

    file: Text
    usage: Sequence[str]


def layout_file(name: str, result: Result, drafted: Draft, overrides: Sequence[str], counts: Changes) -> Written:
    """Return the file of the fastest layout.

    drafted: the configuration that was searched for. overrides: its `--set` options.
    counts: what its numbers of GPUs and hosts must be.
    """
    texts = drafted.files
    documents = [Document(*text) for text in texts]
    changes = {**result.front[0].layout.changes(), **_miscounted(documents, counts)}
    if "dialect" not in drafted.values:  # the keys of a layout could change what is guessed, and so defaults
        changes["dialect"] = drafted.dialect.name
    holders = [document for document in documents if _names(document, changes)]
    others = [override for override in overrides if not _sets(override, changes)]
    first, value = next(iter(changes.items()))
    alone = File(name, _edited(Document(name, f"{first}: {yaml_value(value)}\n"), changes))
    files = [*texts, alone]
    if len(holders) == 1:
        copied = File(name, _edited(holders[0], changes))
        files = [copied if text.name == holders[0].name else text for text in texts]
    what = f"a copy of {holders[0].name} with the fastest layout" if holders else "the fastest layout"
    command = shlex.join(["deepy", "train.py", *(file.name for file in files)])
    usage = [f"{name}: {what}; use it with", command + _set_options(others)]
    if len(holders) > 1 or not _selects(files, others, changes, result.devices):
        usage, files = list(_remove_first(name, holders, changes)), [alone]
    text = next(text for file, text in files if file == name)
    return Written(Text(name, _head(result, texts, usage) + text), usage)


def _miscounted(documents: Sequence[Document], counts: Changes) -> Changes:
    """Return the numbers of GPUs and hosts that a file sets otherwise; those below 1 mean as many as there are."""
    written = {
        entry.name: document.plain(entry)
        for document in documents
        for entry in document.entries().values()
        if entry.name in counts
    }
    return {key: counts[key] for key, old in written.items() if isinstance(old, int) and 0 < old != counts[key]}


def _names(document: Document, changes: Changes) -> dict[str, list[str]]:
    """Return the parameters of the layout that a file sets, each with its names there."""
    found: dict[str, list[str]] = {}
    for name in document.entries():
        parameter = REGISTRY.find(name)
        key = OTHER_NAMES.get(parameter.name, parameter.name) if parameter else ""
        if key in changes:
            found.setdefault(key, []).append(name)
    return found


def _edited(document: Document, changes: Changes) -> str:
    """Return the text of the file with the layout in it."""
    names = _names(document, changes)
    for key, value in changes.items():
        for name in names.get(key, []):
            entry = document.entries()[name]
            if document.plain(entry) != value:
                old = document.text[slice(*entry.value)]
                document.set(name, value)
                document.say_what_was(name, old)  # comments around it may be about the old value
        if key not in names and (key, value) != NOT_OFFLOADED:
            _add(document, key, value)
    return document.text if document.text.endswith("\n") else document.text + document.newline


def _add(document: Document, name: str, value: object) -> None:
    """Add a parameter to the innermost section that the file has."""
    section, _, key = name.rpartition(".")
    while section and section not in document.entries():
        value = {key: value}
        section, _, key = section.rpartition(".")
    document.add(section, key, value)


def _sets(override: str, changes: Changes) -> bool:
    parameter = REGISTRY.find(normal(override.partition("=")[0].strip()))
    return parameter is not None and OTHER_NAMES.get(parameter.name, parameter.name) in changes


def _selects(files: Sequence[File], overrides: Sequence[str], changes: Changes, devices: int) -> bool:
    """Return whether these files have the layout; a text with anchors and merged keys may be edited wrongly."""
    try:
        config = complete_run(draft(files, overrides), os.environ, devices).config
    except Problems:
        return False
    return all(config.get(key) == value for key, value in changes.items())


def _remove_first(name: str, holders: Sequence[Document], changes: Changes) -> Iterator[str]:
    """Tell how to use the layout if several files set parts of it."""
    yield f"{name}: the fastest layout; to use it, pass it with your files after removing"
    for holder in holders:
        keys = [key for spelled in _names(holder, changes).values() for key in spelled]
        yield f"  from {holder.name}: {listed(keys, 'and')}"
    yield "or pass these options, in place of any --set options for the same parameters:"
    yield _set_options(overrides_of(changes)).strip()


def _set_options(overrides: Sequence[str]) -> str:
    return "".join(f" --set {shlex.quote(override)}" for override in overrides)


def _head(result: Result, texts: Sequence[Text], usage: Sequence[str]) -> str:
    """Return the comment at the top of the file."""
    best = result.front[0]
    device = best.plan.target.device.name
    lines = [
        f"The fastest of {result.planned:,} layouts planned for {result.devices:,} x {device} with",
        f"{' '.join(text.name for text in texts)}:",
        f"about {format_duration(best.seconds)} per step and {format_bytes(best.memory)} per rank.",
        *usage,
    ]
    return "".join(f"# {printable(line)}\n" for line in lines)
