"""A value and where it came from: what every parameter of a configuration carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from neoxargs.problems import Place

Kind = Literal["file", "set", "environment", "derived", "default"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value came from, in words a person can follow."""

    kind: Kind
    where: Place | None = None
    text: str = ""
    """For `derived` the rule's own sentence, for `environment` the variable, for `default` whose; a written
    value that a rule put into its full form carries that rule's sentence."""
    inputs: tuple[str, ...] = ()
    """For `derived`, the parameters the rule read."""

    @property
    def set_by_user(self) -> bool:
        """True where the user gave the value: in a file, by `--set`, through the environment."""
        return self.kind in ("file", "set", "environment")

    def __str__(self) -> str:
        if self.kind == "derived":
            return f"derived: {self.text}"
        return str(self.where) if self.where else f"{self.kind}: {self.text}" if self.text else self.kind


#: The source of a value that nobody gave: the registry's default.
DEFAULT = Source("default")


@dataclass(frozen=True, slots=True)
class Value:
    """A value and its source."""

    value: Any
    source: Source
