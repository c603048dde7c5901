"""Line wrapping that keeps file names intact, and numbers formatted for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

#: Bytes per GiB.
GIB = 2**30
#: Replaces a space at which `wrap` must not break; `wrap` restores the space.
NO_BREAK_SPACE = "\u00a0"


def protect_names(text: str, names: Iterable[str]) -> str:
    """Replace the spaces in names of files, so that `wrap` does not break them."""
    for name in names:
        text = text.replace(name, name.replace(" ", NO_BREAK_SPACE))
    return text


def wrap(text: str, width: int, indent: str = "  ") -> list[str]:
    """Wrap into lines of at most `width` characters (longer words are kept); indent all but the first."""
    import textwrap  # slow to import, and `check` does not need it

    # long words and hyphens are not broken, so that file names can be copied
    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK_SPACE, " ") for line in lines]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line per row, whose cells begin in the same column as those of the other rows."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def format_bytes(number: float) -> str:
    """Three significant digits in the largest fitting unit, such as `23.2 GiB`."""
    for unit, factor in (("TiB", 1024 * GIB), ("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= factor:
            digits = f"{number / factor:#.3g}".rstrip(".")
            return f"{digits} {unit}" if number < 999.5 * factor else f"{number / factor:,.0f} {unit}"
    return f"{number:.0f} B"


def format_count(number: float) -> str:
    """Three significant digits with K, M, B or T (10^3 to 10^12), such as `2.65 B`."""
    for unit, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.0f}"


def format_duration(seconds: float) -> str:
    """Three significant digits in ms, s, minutes, hours or days; a unit is used from 2 on."""
    for unit, factor in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * factor:
            return f"{format_number(seconds / factor)} {unit}"
    return f"{format_number(seconds)} s" if seconds >= 1 else f"{format_number(seconds * 1000)} ms"


def format_number(number: float) -> str:
    """Three significant digits, as `0.00073`, `46.2` or `6,210`: an exponent below 1e-4 and from 1e15."""
    if number == 0 or not 1e-4 <= number < 1e15:
        return f"{number:.3g}"
    return f"{float(f'{number:.3g}'):,.0f}" if number >= 100 else f"{number:.3g}"


def format_percent(number: float, of: float) -> str:
    """`number / of` in percent, such as `46 %`, `1,200 %`, `0.1 %` or `<0.01 %`."""
    value = 100 * number / of
    return f"{value:,.0f} %" if value >= 1 else f"{value:.1g} %" if value >= 0.01 else "<0.01 %"


def shorten(value: object, limit: int | None) -> str:
    """Format a value in at most `limit` characters; a list of equal items as `12 x "global"`."""
    if isinstance(value, list) and len(value) > 2 and all(item == value[0] for item in value):
        return f"{len(value)} x {json.dumps(value[0])}"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"
