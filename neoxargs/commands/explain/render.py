"""Format the description of a parameter as lines, or as a list in Markdown: a label, then its text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from neoxargs.base.text import protect_names, wrap
from neoxargs.config.config import Config
from neoxargs.resolve.provenance import Origin

WIDTH = 96
LABEL = 14


def rows(described: Mapping[str, Any], config: Config | None = None) -> Iterator[str]:
    """Yield the lines of all rows; text is wrapped, but never inside the path of a configuration file."""
    names = config.file_names() if config else ()
    for label, value in described.items():
        texts = [protect_names(text, names) for text in _texts(value)]
        lines = [line for text in texts for line in wrap(text, WIDTH - LABEL, _indent(text))] or [""]
        yield f"  {label.ljust(LABEL)}{lines[0]}"
        yield from (" " * (LABEL + 2) + line for line in lines[1:])


def items(described: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rows as items of a list in Markdown, and further lines of a row as items below it."""
    for label, value in described.items():
        first, *more = map(markdown, _texts(value))
        yield f"- **{label}**: {first}"
        # Each two columns of a tree are a level of the list.
        yield from (" " * max(2, len(text) - len(text.lstrip())) + f"- {text.lstrip()}" for text in more)


def markdown(text: str) -> str:
    """Return a text in which only what is between backticks is markup."""
    return re.sub(r"(`[^`]*`)|([<*\\])", lambda found: found[1] or f"\\{found[2]}", text)


def _texts(value: Any) -> list[str]:
    if isinstance(value, Origin):
        return [value.why, *_lines(value, "  ")]
    if isinstance(value, list) and value and all(isinstance(item, str) and ": " in item for item in value):
        return value
    return [value if isinstance(value, str) else json.dumps(value, default=str)]


def _lines(origin: Origin, indent: str) -> Iterator[str]:
    """Yield the tree below a value, one line per value."""
    for read in origin.inputs:
        yield f"{indent}{read.name} {json_words(read.value)}: {read.why}"
        yield from _lines(read, indent + "  ")


def origin_to_json(origin: Origin) -> dict[str, Any]:
    """Return the tree of a value for `--json`."""
    below = {"from": list(map(origin_to_json, origin.inputs))} if origin.inputs else {}
    return {"name": origin.name, "value": origin.value, "why": origin.why, **below}


def json_words(value: Any) -> str:
    """Return a value as JSON, truncated to 60 characters."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:58] + " …"


def _indent(text: str) -> str:
    """Return the indentation of continuation lines: two columns deeper than an indented line of a tree."""
    own = text[: len(text) - len(text.lstrip())]
    return own + "  " * bool(own)
