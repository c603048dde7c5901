"""The parameters of datasets: their splits, the paths in their values, and what they do with documents."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from neoxargs.registry.data import Data

Paths = Sequence[str] | str | None
#: The splits, as the names of their parameters begin.
SPLITS = ("train", "valid", "test")
#: What may stand before that: nothing, or for preference pairs, the preferred or the rejected answers.
ANSWERS = ("", "pos_", "neg_")


def added(numbers: Iterable[float]) -> float:
    """Return the sum from left to right, as GPT-NeoX's was.

    From Python 3.12 on, `sum` corrects the rounding of floats, which would change the order of samples.
    """
    total = 0.0
    for number in numbers:
        total += number
    return total


def path_list(paths: Paths) -> list[str]:
    """Return the paths of a list, or of one string with commas between them."""
    if isinstance(paths, str):
        return [path.strip() for path in paths.split(",") if path.strip()]
    return list(paths or ())


def blend(data_path: str | Sequence[str | float]) -> list[tuple[str, float | None]]:
    """Parse `data_path` into (prefix, weight) pairs; the weight is None if not given.

    `data_path` is one prefix, several separated by commas, or a list in which a weight may precede each prefix.
    """
    pairs: list[tuple[str, float | None]] = []
    weight: float | None = None
    for text in _items(data_path):
        if is_weight(text):
            weight = float(text)
        else:
            pairs.append((text, weight))
            weight = None
    return pairs


def has_misplaced_weight(data_path: str | Sequence[str | float]) -> bool:
    """Return whether `data_path` has weights, but not one before each prefix; `blend` then loses some of them."""
    weights = [is_weight(text) for text in _items(data_path)]
    return any(weights) and weights != [True, False] * (len(weights) // 2)


def _items(data_path: str | Sequence[str | float]) -> list[str]:
    """Return the entries as text: a weight may be a number or its text, as in Megatron's `0.3 a 0.7 b`."""
    items = data_path.split(",") if isinstance(data_path, str) else data_path
    return [text for item in items if (text := str(item).strip())]


def is_weight(text: str) -> bool:
    """Return whether an item of `data_path` is the weight of the next prefix."""
    return re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text) is not None


def split_proportions(split: str | Sequence[float]) -> list[float] | None:
    """Return the up to three numbers of `969, 30, 1`, `90/10` or a list; None for anything else."""
    try:
        parts = split.replace("/", ",").split(",") if isinstance(split, str) else split
        numbers = [float(part) for part in parts]
    except ValueError:
        return None
    return numbers if len(numbers) <= 3 and all(0 <= number < math.inf for number in numbers) else None


def shares(split: str | Sequence[float]) -> list[float]:
    """Return the proportions of training, validation and test data; 0 for what is not written or cannot be read."""
    return [*(split_proportions(split) or ()), 0.0, 0.0, 0.0][:3]


def label_pairs(paths: Paths, labels: Paths) -> list[tuple[str, str]]:
    """Return the token files of a split, each with its label file."""
    return list(zip(path_list(paths), path_list(labels), strict=False))


def masks_documents(data: Data) -> bool:
    """Whether tokens attend only to tokens of their own document."""
    return data.reset_attention_mask or data.pack_impl == "best_fit"


def resets_positions(data: Data) -> bool:
    """Whether positions are counted from the start of each document."""
    return data.reset_position_ids or data.pack_impl == "best_fit"
