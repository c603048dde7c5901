"""The parameters of datasets: their splits, the paths in their values, and what they do with documents."""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.registry.data import Data

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


def masks_documents(data: Data) -> bool:
    """Whether tokens attend only to tokens of their own document."""
    return data.reset_attention_mask or data.pack_impl == "best_fit"


def resets_positions(data: Data) -> bool:
    """Whether positions are counted from the start of each document."""
    return data.reset_position_ids or data.pack_impl == "best_fit"
