"""Settings put in the place of an entry: in its own section where they belong there, else where their section is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neoxargs.registry import REGISTRY
from neoxargs.tools.migrate.yaml_edit import Document, Found


def replace(documents: Sequence[Document], document: Document, entry: Found, new: Mapping[str, Any]) -> None:
    """Write these (name -> value) instead of an entry of one of the documents."""
    home = entry.name.rpartition(".")[0]
    plan: dict[tuple[int, str], dict[str, Any]] = {}
    for name, value in new.items():
        where, section, rest = _room([document, *documents], name)
        _deepen(plan.setdefault((documents.index(where), section), {}), rest, value)
    here = plan.pop((documents.index(document), home), {})
    for (index, section), nested in plan.items():
        for key, value in nested.items():
            documents[index].add(section, _spelled(document, entry, section, key), value)
    _in_place(document, entry, home, here)


def _in_place(document: Document, entry: Found, home: str, here: Mapping[str, Any]) -> None:
    if not here:
        document.remove(entry.name)
        return
    prefix, last = f"{home}." if home else "", entry.name
    spellings = {key: _spelled(document, entry, home, key) for key in here}
    for key, value in here.items():
        spelled = spellings[key]
        if last == entry.name:
            document.set(last, value)
            document.rename(last, spelled)
        else:
            document.add(home, spelled, value, after=last)
        last = prefix + key


def _room(documents: Sequence[Document], name: str) -> tuple[Document, str, list[str]]:
    """The innermost section of the name that one of the documents has, the first of all, and the rest of the name."""
    parts = name.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        section = ".".join(parts[:depth])
        for candidate in documents:
            if section in candidate.entries():
                return candidate, section, parts[depth:]
    return documents[0], "", parts


def _spelled(document: Document, entry: Found, section: str, key: str) -> str:
    """DeepSpeed's keys have underscores; the others are spelt as the file spells its own."""
    parameter = None if section else REGISTRY.parameters.get(key)
    is_free = parameter is not None and "DSC" not in parameter.origins
    return document.spelled(entry, key) if is_free else key


def _deepen(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = value
