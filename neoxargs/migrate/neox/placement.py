"""The files of one run while they are edited: where an entry was, and where to write its replacement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neoxargs.base.files import Text
from neoxargs.base.problems import Place
from neoxargs.registry import REGISTRY
from neoxargs.resolve import Draft, File, draft
from neoxargs.resolve.yaml.edit import Document, Entry
from neoxargs.targets.nesting import nested


class Files:
    """The files of one run, each with its original text."""

    def __init__(self, files: Sequence[File]) -> None:
        self.documents = [Document(*file) for file in files]
        self._originals = {document.name: document.copy() for document in self.documents}
        self._parsed: dict[Text, File] = {file: file for file in files}

    @property
    def texts(self) -> list[Text]:
        """The current text of each file."""
        return [Text(document.name, document.text) for document in self.documents]

    def draft(self, **overrides: str) -> Draft:
        """Merge the current files. Each is parsed again only after an edit."""
        texts = self.texts
        self._parsed = {text: self._parsed.get(text) or File(*text) for text in texts}
        return draft([self._parsed[text] for text in texts]).with_values(overrides)

    def holder(self, name: str) -> Document | None:
        """Return the file that has an entry of this name, or None."""
        return next((document for document in self.documents if name in document.entries()), None)

    def place(self, document: Document, entry: Entry) -> Place:
        """Return the place of an entry in the original file."""
        original = self._originals[document.name]
        unedited = original.entries().get(entry.name)
        return original.place(unedited) if unedited else document.place(entry)

    def replace(self, document: Document, entry: Entry, new: Mapping[str, Any]) -> None:
        """Replace an entry by new ones (name -> value), each in its own section of any file."""
        home = entry.name.rpartition(".")[0]
        plan: dict[tuple[int, str], dict[str, Any]] = {}
        for name, value in new.items():
            target, section, rest = _innermost_section([document, *self.documents], name)
            plan.setdefault((self.documents.index(target), section), {})[rest] = value
        beside = nested(plan.pop((self.documents.index(document), home), {}))
        for (index, section), values in plan.items():
            for key, value in nested(values).items():
                self.documents[index].add(section, _spelled(document, entry, section, key), value)
        _replace_in_place(document, entry, home, beside)


def _replace_in_place(document: Document, entry: Entry, home: str, new: Mapping[str, Any]) -> None:
    """Write new entries of the same section: the first replaces the old one, the others follow it."""
    if not new:
        document.remove(entry.name)
        return
    prefix, last = f"{home}." if home else "", entry.name
    spellings = {key: _spelled(document, entry, home, key) for key in new}
    for key, spelled in spellings.items():
        if last == entry.name:
            document.set(last, new[key])
            document.rename(last, spelled)
        else:
            document.add(home, spelled, new[key], after=last)
        last = prefix + key


def _innermost_section(documents: Sequence[Document], name: str) -> tuple[Document, str, str]:
    """Return the first document that has the innermost section of a dotted name, the section, and the rest."""
    parts = name.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        section = ".".join(parts[:depth])
        for candidate in documents:
            if section in candidate.entries():
                return candidate, section, ".".join(parts[depth:])
    return documents[0], "", name


def _spelled(document: Document, entry: Entry, section: str, key: str) -> str:
    """Spell a key with `-` or `_` as the file does, except DeepSpeed's keys, which always have underscores."""
    parameter = None if section else REGISTRY.parameters.get(key)
    is_free = parameter is not None and "DSC" not in parameter.origins
    return document.spelled(entry, key) if is_free else key
