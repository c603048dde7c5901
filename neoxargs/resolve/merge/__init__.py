"""Merge all files and `--set`s into one table: registry name -> checked value and its source.

Three passes: `entries.py` reads the keys (names, spellings, duplicates), `assign.py` gives each parameter one value
(types, `--set` overrides files), `judge.py` reports every other key with a suggestion.
"""

from __future__ import annotations

from neoxargs.resolve.merge.draft import Draft, draft, draft_of, read_draft

__all__ = ["Draft", "draft", "draft_of", "read_draft"]
