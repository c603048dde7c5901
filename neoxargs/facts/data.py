"""The parameters of datasets: their splits, and the paths in their values."""

from __future__ import annotations

from collections.abc import Sequence

Paths = Sequence[str] | str | None
#: The splits, as the names of their parameters begin.
SPLITS = ("train", "valid", "test")
#: What may stand before that: nothing, or for preference pairs, the preferred or the rejected answers.
ANSWERS = ("", "pos_", "neg_")


def path_list(paths: Paths) -> list[str]:
    """Return the paths of a list, or of one string with commas between them."""
    if isinstance(paths, str):
        return [path.strip() for path in paths.split(",") if path.strip()]
    return list(paths or ())


def label_pairs(paths: Paths, labels: Paths) -> list[tuple[str, str]]:
    """Return the token files of a split, each with its label file."""
    return list(zip(path_list(paths), path_list(labels), strict=False))
