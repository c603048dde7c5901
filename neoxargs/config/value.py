"""The value of a parameter and its source."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from neoxargs.base.problems import Place

Kind = Literal["file", "set", "environment", "derived", "default"]


class Source(NamedTuple):
    """Where a value came from; `str()` gives the text for messages."""

    kind: Kind
    where: Place | None = None
    text: str = ""
    """derived: the reason that the rule gives; environment: the variable; default: the dialect, "" if the default
    is the registry's.

    For file and set: the reason given by the rule that normalised the value, if any."""
    inputs: tuple[str, ...] = ()
    """derived: the parameters that the rule read."""

    @property
    def set_by_user(self) -> bool:
        """True if the user set the value: in a file, with `--set` or through the environment."""
        return self.kind in ("file", "set", "environment")

    @property
    def short(self) -> str:
        """The place of the value, or else the name of its source."""
        return str(self.where) if self.where else self.text or self.kind

    def __str__(self) -> str:
        if self.kind == "derived":
            return f"derived: {self.text}"
        return str(self.where) if self.where else f"{self.kind}: {self.text}" if self.text else self.kind


#: The source of a registry default.
DEFAULT = Source("default")


class Value(NamedTuple):
    """A value and its source."""

    value: Any
    source: Source
