"""What each part of the data is made of, as the configuration says it: token files, shares and weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from neoxargs.registry.data import Data
from neoxargs.train.data.loader import Part

PARTS: tuple[Part, ...] = ("train", "validation", "test")
Share = tuple[float, float]
"""A stretch of a token file's sequences: from, to, as fractions."""


@dataclass(frozen=True)
class Source:
    """Where samples come from: a stretch of a token file, and how often it is drawn from.

    weight: relative to the other sources of the part; None stands for its number of tokens.
    """

    prefix: str
    share: Share = (0.0, 1.0)
    weight: float | None = None


def sources(data: Data) -> dict[Part, list[Source]]:
    """What each part is made of, from `data_path` and `split` or from the three lists of paths.

    Text is no source: before the ranks start, the launcher has made a token file of it and named it as `data_path`.
    """
    if data.data_path:
        shares = split_shares(data.split)
        return {
            part: [Source(prefix, share, weight) for prefix, weight in blend(data.data_path)] if share else []
            for part, share in zip(PARTS, shares, strict=True)
        }
    lists = (
        (data.train_data_paths, data.train_data_weights),
        (data.valid_data_paths, data.valid_data_weights),
        (data.test_data_paths, data.test_data_weights),
    )
    return {
        part: [Source(prefix, weight=weight) for prefix, weight in _weighted(prefixes, weights)]
        for part, (prefixes, weights) in zip(PARTS, lists, strict=True)
    }


def blend(data_path: str | Sequence[str | float]) -> list[tuple[str, float | None]]:
    """`data_path` as prefixes with their weights: one, several with commas, or a list in which weights may precede."""
    items = data_path.split(",") if isinstance(data_path, str) else data_path
    found: list[tuple[str, float | None]] = []
    weight: float | None = None
    for item in items:
        text = str(item).strip()
        if re.fullmatch(r"[0-9.]+(e-?[0-9]+)?", text):
            weight = float(text)
        elif text:
            found.append((text, weight))
            weight = None
    return found


def split_shares(split: str | Sequence[float]) -> list[Share | None]:
    """`969, 30, 1` as a stretch for each part; None for a part that gets nothing."""
    numbers = [float(n) for n in re.findall(r"[0-9.]+(?:e-?[0-9]+)?", split)] if isinstance(split, str) else list(split)
    numbers = [*numbers, 0.0, 0.0][:3]
    ends = [end / sum(numbers) for end in accumulate(numbers, initial=0.0)]
    return [(a, b) if b > a else None for a, b in pairwise(ends)]


def _weighted(
    prefixes: Sequence[str] | str | None, weights: Sequence[float] | None
) -> Iterator[tuple[str, float | None]]:
    """Without weights all are drawn from equally often."""
    names = [name for name, _ in blend(prefixes or ())]
    return zip(names, weights or [1.0] * len(names), strict=True)
