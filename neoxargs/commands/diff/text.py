"""The comparison as text: a verdict, then the differences by what they can do."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence

from neoxargs.base.text import aligned
from neoxargs.commands.diff.differences import RankedDifference, first_names, spellings
from neoxargs.commands.diff.launches import other_values, same_before
from neoxargs.commands.diff.side import Side, short_pair
from neoxargs.commands.diff.weights import WeightComparison
from neoxargs.registry import REGISTRY
from neoxargs.resolve.compare.impact import IMPACTS, Impact, kind_of

HEADINGS: dict[Impact, str] = {
    "result": "can change the result",
    "unshown": "not shown to keep the result",
    "rounding": "can change rounding only",
    "nothing": "cannot change training",
    "unread": "without effect in these runs",
}
#: The same for all differences together: that of the first impact that one of them has.
VERDICTS: dict[Impact, str] = {
    "result": "the differences can change the result",
    "unshown": "no test shows that the differences keep the result",
    "rounding": "the differences cannot change the result, except by rounding",
    "nothing": "the differences cannot change training",
}


def section(heading: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a heading and aligned rows."""
    yield f"\n{heading}:"
    yield from rows_of(rows)


def rows_of(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield aligned rows."""
    yield from (f"  {line}" for line in aligned(rows))


def lines(a: Side, b: Side, found: Sequence[RankedDifference], weights: WeightComparison | None) -> Iterator[str]:
    """Yield the lines of the comparison."""
    yield from (f"{letter}  {described(side)}" for letter, side in (("A", a), ("B", b)))
    yield f"=> {verdict(a, b, found, weights)}"
    for impact, heading in HEADINGS.items():
        of_impact = [each for each in found if each.impact == impact]
        if of_impact and impact == "unread":
            yield f"\n{heading}: {', '.join(each.name for each in of_impact)}"
        elif of_impact:
            yield f"\n{heading}: {len(of_impact)}"
            yield from _table(of_impact)
    if rows := earlier(a, b):
        yield from section("other values in earlier launches", rows)
    hidden = [not_compared(side) for side in (a, b)]
    if hidden[0] and hidden[0] == hidden[1]:
        yield f"\nrecorded in neither A nor B: {first_names(hidden[0])}"
        return
    for side, names in zip((a, b), hidden, strict=True):
        if names:
            yield f"\nnot recorded in {side.name}: {first_names(names)}"


def earlier(a: Side, b: Side) -> list[tuple[str, str, str, str]]:
    """Return rows of the values that earlier launches had, beside those of the last one, which is compared."""
    return [
        (letter, launch.describe(), each.name, f"{one} (last launch: {other})")
        for letter, side in (("A", a), ("B", b))
        for launch, found in other_values(side.launches)
        for each in found
        for one, other in [short_pair(*each.values)]
    ]


def not_compared(side: Side) -> list[str]:
    """Return the parameters with an effect on training that are missing from a run's record."""
    names = (name for name in REGISTRY.parameters if name in side.config.broken and side.has_sources)
    return [name for name in names if IMPACTS[kind_of(REGISTRY.parameters[name])] in ("result", "rounding")]


def verdict(a: Side, b: Side, found: Sequence[RankedDifference], weights: WeightComparison | None) -> str:
    """Return what all differences together can do, in a sentence."""
    if not found and a.checkpoint and b.checkpoint:
        if weights is None:
            return "the same configuration"
        return f"the same configuration and {'the same' if weights.same else 'different'} weights"
    impacts = {each.impact for each in found}
    if not impacts & {"result", "unshown"} and not same_before(a.launches, b.launches):
        return "earlier launches had other values, which can change the result"
    if answer := next((sentence for impact, sentence in VERDICTS.items() if impact in impacts), ""):
        return answer
    spelled = spellings(a, b) if a.has_sources and b.has_sources else ""
    return f"the same run{f', written differently: {spelled}' if spelled else ''}"


def described(side: Side) -> str:
    """Return the name of a side, what it is, and for how many ranks."""
    dialect = f"{side.config.dialect.name}, " if side.config.dialect else ""
    count = len(side.launches)
    launch = f", launch {count} of {count}: {side.launches[-1].describe()}" if count > 1 else ""
    return f"{side.name}  ({side.kind}{launch}, {dialect}{side.ranks} rank{'s' * (side.ranks > 1)})"


def _table(found: Sequence[RankedDifference]) -> Iterator[str]:
    """Yield a row for each difference: kind, name, both values, and where they come from."""
    sources = [tuple(map(_short, each.sources)) for each in found]
    places = [f"both: {a}" if a == b else f"A: {a}; B: {b}" for a, b in sources]
    rows = [(each.kind, each.name, *short_pair(*each.values), at) for each, at in zip(found, places, strict=True)]
    for line, each in zip(rows_of(rows), found, strict=True):
        yield line
        if each.note:
            yield f"  {' ' * max(len(kind) for kind, *_ in rows)}  ({each.note})"


def _short(source: str, limit: int = 60) -> str:
    """Return a source in one line, without the current folder and without the end of a long reason."""
    source = " ".join(source.split()).replace(os.getcwd() + os.sep, "")
    is_reason = source.startswith("derived")
    return textwrap.shorten(source, limit, placeholder=" …") if is_reason else source
