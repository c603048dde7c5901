"""An entry of the catalogue: the explanation of a problem and an example that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Example:
    """A configuration with the problem, checked together with the smallest model."""

    config: str
    overrides: tuple[str, ...] = ()
    """Arguments of `--set`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Other files in the same folder, as name -> content."""
    without: tuple[str, ...] = ()
    """Parameters to remove from the smallest model."""
    gpus: int | None = 8
    """Number of GPUs of the run; None if the hostfile determines it."""


@dataclass(frozen=True)
class Entry:
    """What the catalogue holds for one id."""

    protects_from: str
    """What would go wrong, on the GPUs or for the user, if this problem were not reported."""
    example: Example | None = None
    """None for a problem that `check` cannot show because it involves another machine, program or file."""
    reads: tuple[str, ...] = ()
    """The parameters that a rule reads; empty for problems that are not reported by a rule."""


def row(protects_from: str, config: str = "") -> Entry:
    """Return an entry; `config` is the YAML of its example, if it has one."""
    return Entry(protects_from, Example(config) if config else None)
