"""Resolve YAML files into one complete `Config`, or raise `Problems` with everything that is wrong.

Reads files and, for the GPU count, whatever the caller's function reads; starts no process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from neoxargs.base.files import Text
from neoxargs.base.problems import Problems
from neoxargs.config.config import Config
from neoxargs.resolve.derive import complete
from neoxargs.resolve.merge import Draft, draft
from neoxargs.resolve.yaml.read import read_files

__all__ = ["Draft", "complete", "draft", "read_files", "resolve", "resolve_texts"]


def resolve(
    paths: Iterable[str | os.PathLike[str]],
    overrides: Sequence[str] = (),
    directory: str | os.PathLike[str] | None = None,
    *,
    gpus: int | Callable[[Draft], int],
    samples: Callable[[Draft], int | None] | None = None,
) -> Config:
    """Read files and `--set KEY=VALUE`s, merge, derive and cross-check them.

    paths: names of YAML or JSON files; the suffix may be omitted.
    directory: folder in which relative names are looked for first.
    gpus: number of ranks, or a function that finds it from the draft (which names the hosts).
    samples: function that counts the training samples of one epoch, for `train_epochs`.

    Raises Problems with everything that is wrong.
    """
    return resolve_texts(read_files(paths, directory), overrides, gpus=gpus, samples=samples)


def resolve_texts(
    texts: Sequence[Text],
    overrides: Sequence[str] = (),
    *,
    gpus: int | Callable[[Draft], int],
    samples: Callable[[Draft], int | None] | None = None,
) -> Config:
    """Same as `resolve`, for files that are already read."""
    drafted = draft(texts, overrides)
    counted = _count(gpus, drafted)
    return complete(drafted, counted, samples_per_epoch=_count(samples or 0, drafted))


def _count(number: int | Callable[[Draft], int | None], drafted: Draft) -> int | None:
    # The hosts of an unreadable file are not known, and its syntax error is the only problem that matters.
    if not callable(number) or not drafted.readable:
        return number if isinstance(number, int) else None
    try:
        return number(drafted)
    except Problems as stop:
        drafted.problems.extend(stop.problems)
        return None
