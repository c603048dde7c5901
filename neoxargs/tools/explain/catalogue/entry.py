"""What there is to say about a kind of problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Example:
    """A file that has the problem, beside a file of the smallest model."""

    config: str
    overrides: tuple[str, ...] = ()
    """`--set`s."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What lies beside it."""
    without: tuple[str, ...] = ()
    """What the smallest model leaves out."""
    gpus: int | None = 8


@dataclass(frozen=True)
class Entry:
    """A row of the catalogue."""

    protects_from: str
    """What goes wrong, on the GPUs or for the reader, where this is not found."""
    example: Example | None = None
    """None where `check` cannot show it: it needs another machine, program or file."""
    reads: tuple[str, ...] = ()
    """The parameters that it depends on, where that is always the same."""


def row(protects_from: str, config: str = "", **more: object) -> Entry:
    """An entry whose example is some lines of YAML."""
    return Entry(protects_from, Example(config, **more) if config or more else None)  # type: ignore[arg-type]
