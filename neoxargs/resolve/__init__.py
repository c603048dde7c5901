"""Resolve YAML files into one complete `Config`, or raise `Problems` with everything that is wrong.

Reads files; starts no process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from neoxargs.config.config import Config
from neoxargs.resolve.derive import before_ranks, complete
from neoxargs.resolve.merge import Draft, draft, read_draft
from neoxargs.resolve.yaml.read import File, read_files

__all__ = ["Draft", "File", "before_ranks", "complete", "draft", "read_draft", "read_files", "resolve"]


def resolve(
    paths: Iterable[str | os.PathLike[str]],
    overrides: Sequence[str] = (),
    directory: str | os.PathLike[str] | None = None,
    *,
    gpus: int,
) -> Config:
    """Read files and `--set KEY=VALUE`s, merge, derive and cross-check them.

    paths: names of YAML or JSON files; the suffix may be omitted.
    directory: folder in which relative names are looked for first.
    gpus: number of ranks.

    Raises Problems with everything that is wrong.
    """
    return complete(read_draft(paths, directory, overrides), gpus)
