"""Merge all files and `--set`s into one table: registry name -> checked value and its source.

Three passes: `entries.py` reads the keys (names, spellings, duplicates), `assign.py` gives each parameter one value
(types, `--set` overrides files), `judge.py` reports every other key with a suggestion.
"""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.base.files import Text
from neoxargs.config.dialect import Dialect
from neoxargs.registry.history import NEWEST
from neoxargs.resolve.merge.assign import assign
from neoxargs.resolve.merge.entries import Entries, read_overrides, read_texts, read_tree
from neoxargs.resolve.merge.judge import judge
from neoxargs.resolve.merge.result import Draft
from neoxargs.resolve.yaml.nodes import Mapping

__all__ = ["Draft", "draft", "draft_of"]


def draft(texts: Sequence[Text], overrides: Sequence[str] = ()) -> Draft:
    """Merge files and `--set KEY=VALUE`s. Problems are collected in `.problems`; nothing is raised.

    A parameter may be set once in all files; only a `--set` overrides files.
    """
    return _merged(read_texts(texts), read_overrides(overrides))


def draft_of(tree: Mapping) -> Draft:
    """Merge a tree that was not read from YAML as if it were a file of the newest dialect."""
    return _merged(read_tree(tree), Entries("set"), Dialect(NEWEST, "the settings were not written for GPT-NeoX"))


def _merged(files: Entries, sets: Entries, dialect: Dialect | None = None) -> Draft:
    return judge(files, sets, assign(files, sets, dialect))
