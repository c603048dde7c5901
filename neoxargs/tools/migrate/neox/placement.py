"""The files that are edited together: where an entry stood, and where what takes its place belongs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neoxargs.problems import Place
from neoxargs.registry import REGISTRY
from neoxargs.resolve import Text
from neoxargs.tools.migrate.yaml_edit import Document, Entry


class Files:
    """Files that belong together, each with its original."""

    def __init__(self, texts: Sequence[Text]) -> None:
        self.documents = [Document(*text) for text in texts]
        self._originals = {text.name: Document(*text) for text in texts}

    @property
    def texts(self) -> list[Text]:
        """What stands in them now."""
        return [Text(document.name, document.text) for document in self.documents]

    def holder(self, name: str) -> Document | None:
        """The file that has an entry of this name."""
        return next((document for document in self.documents if name in document.entries()), None)

    def place(self, document: Document, entry: Entry) -> Place:
        """Where an entry stood in the file as it was given."""
        original = self._originals[document.name]
        there = original.entries().get(entry.name)
        return original.place(there) if there else document.place(entry)

    def replace(self, document: Document, entry: Entry, new: Mapping[str, Any]) -> None:
        """Write these (name -> value) instead: in the entry's own section, or else where their section is."""
        home = entry.name.rpartition(".")[0]
        plan: dict[tuple[int, str], dict[str, Any]] = {}
        for name, value in new.items():
            target, section, rest = _innermost_section([document, *self.documents], name)
            _set_nested(plan.setdefault((self.documents.index(target), section), {}), rest, value)
        beside = plan.pop((self.documents.index(document), home), {})
        for (index, section), nested in plan.items():
            for key, value in nested.items():
                self.documents[index].add(section, _spelled(document, entry, section, key), value)
        _replace_in_place(document, entry, home, beside)


def _replace_in_place(document: Document, entry: Entry, home: str, new: Mapping[str, Any]) -> None:
    """Write new entries of the same section: the first over the old one, the others behind it."""
    if not new:
        document.remove(entry.name)
        return
    prefix, last = f"{home}." if home else "", entry.name
    spellings = {key: _spelled(document, entry, home, key) for key in new}
    for key, value in new.items():
        spelled = spellings[key]
        if last == entry.name:
            document.set(last, value)
            document.rename(last, spelled)
        else:
            document.add(home, spelled, value, after=last)
        last = prefix + key


def _innermost_section(documents: Sequence[Document], name: str) -> tuple[Document, str, list[str]]:
    """The innermost section of the name that one of the documents has, the first of all, and the rest of the name."""
    parts = name.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        section = ".".join(parts[:depth])
        for candidate in documents:
            if section in candidate.entries():
                return candidate, section, parts[depth:]
    return documents[0], "", parts


def _spelled(document: Document, entry: Entry, section: str, key: str) -> str:
    """DeepSpeed's keys have underscores; the others are spelt as the file spells its own."""
    parameter = None if section else REGISTRY.parameters.get(key)
    is_free = parameter is not None and "DSC" not in parameter.origins
    return document.spelled(entry, key) if is_free else key


def _set_nested(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = value
