"""All files and `--set`s in one table: registry name -> checked value and where it was written.

Three passes: `entries.py` reads the keys (names, spellings, doubles), `assign.py` gives each parameter its value
(types, files against `--set`), `judge.py` says of every other key what it was probably meant to be.
"""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.registry.history import NEWEST
from neoxargs.resolve.dialect import Dialect
from neoxargs.resolve.merge.assign import assign
from neoxargs.resolve.merge.entries import Entries, read_overrides, read_texts, read_tree
from neoxargs.resolve.merge.judge import judge
from neoxargs.resolve.merge.result import Draft
from neoxargs.resolve.yaml.compose import Text
from neoxargs.resolve.yaml.nodes import Mapping

__all__ = ["Draft", "draft", "draft_of"]


def draft(texts: Sequence[Text], overrides: Sequence[str] = ()) -> Draft:
    """Merge files and `--set KEY=VALUE`s; what is wrong with them is in `.problems`, nothing is raised.

    Files may not say the same thing twice; a `--set` overrides files and nothing else does.
    """
    return _merged(read_texts(texts), read_overrides(overrides))


def draft_of(tree: Mapping) -> Draft:
    """Merge a tree that was not read from YAML as if it were a file; it speaks today's dialect."""
    return _merged(read_tree(tree), Entries("set"), Dialect(NEWEST, "it was not written for GPT-NeoX"))


def _merged(files: Entries, sets: Entries, dialect: Dialect | None = None) -> Draft:
    return judge(files, sets, assign(files, sets, dialect))
