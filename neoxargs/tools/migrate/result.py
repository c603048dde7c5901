"""What came of a migration: the new texts, each change with its reason, and what a person should know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple

from neoxargs.problems import Place, Problem
from neoxargs.resolve import Text

#: How a new file is called in problems while it has no name.
NEW_FILE = "new YAML"


class Change(NamedTuple):
    """One edit, to be understood: where it was, what it was, what it is, and why."""

    where: Place
    before: str
    after: str
    why: str
    since: date | None = None

    def __str__(self) -> str:
        since = f", {self.since}" if self.since else ""
        if not self.before:
            return f"{self.where.file}: added {self.after} ({self.why}{since})"
        return f"{self.where}: {self.before} → {self.after or 'left out'} ({self.why}{since})"

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.where.file,
            "line": self.where.line,
            "column": self.where.column,
            "before": self.before,
            "after": self.after,
            "why": self.why,
            "since": self.since.isoformat() if self.since else None,
        }


@dataclass
class Result:
    """The new texts: of files edited in place in the order of the old ones, otherwise the one that is new."""

    texts: list[Text]
    changes: list[Change] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What stands in the only file."""
        (only,) = self.texts
        return only.text


def new_file(text: str, changes: Iterable[Change] = (), problems: Iterable[Problem] = ()) -> Result:
    """A file that does not exist yet, and has no name."""
    return Result([Text(NEW_FILE, text)], list(changes), list(problems))
