"""Sentences in lines for a terminal, in which no name of a file is broken."""

from __future__ import annotations

from neoxargs.resolve.config import Config

#: A space at which no line ends.
TOGETHER = "\u00a0"


def together(text: str, config: Config | None) -> str:
    """The text with the files and paths of a configuration kept whole, whatever spaces are in their names."""
    values = config.values.values() if config else ()
    names = {value.source.where.file for value in values if value.source.where}
    names |= {value.value for value in values if isinstance(value.value, str) and "/" in value.value}
    for name in names:
        text = text.replace(name, name.replace(" ", TOGETHER))
    return text


def wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    """Lines of at most `width`, but for a word that is longer; all but the first are indented."""
    import textwrap  # a check draws no summary

    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace(TOGETHER, " ") for line in lines]
