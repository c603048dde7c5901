"""The result of a migration: the new texts, every change with its reason, and problems."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem

#: What problems call a new file that has no name yet.
NEW_FILE = "new YAML"


class Change(NamedTuple):
    """One edit: its place, the old and new text, and the reason. `before` is empty for an added line.

    since: the day on which GPT-NeoX made the change that requires the edit.
    """

    where: Place
    before: str
    after: str
    why: str
    since: date | None = None

    def __str__(self) -> str:
        since = f", {self.since}" if self.since else ""
        if not self.before:
            return f"{self.where.file}: added {self.after} ({self.why}{since})"
        return f"{self.where}: {self.before} → {self.after or 'removed'} ({self.why}{since})"

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
    """New texts with their changes and problems.

    texts: for files edited in place, one for each of them in the same order; otherwise the one new file.
    """

    texts: list[Text]
    changes: list[Change] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)
    """What the user has to decide before the new file describes the same run; its comments say the same."""

    @property
    def text(self) -> str:
        """The content of the only file."""
        (only,) = self.texts
        return only.text


def new_file(
    text: str, changes: Iterable[Change] = (), problems: Iterable[Problem] = (), to_do: Iterable[str] = ()
) -> Result:
    """Return the result for a new file, which has no name yet."""
    return Result([Text(NEW_FILE, text)], list(changes), list(problems), list(to_do))
