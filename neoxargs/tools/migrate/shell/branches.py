"""Choose the branch to read of each `if`, `case` and loop in a script, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from neoxargs.problems import Place, Problem
from neoxargs.tools.migrate.shell import conditions
from neoxargs.tools.migrate.shell.words import Word


@dataclass
class Branching:
    """An open `if`, `case`, loop or group `{ }`.

    active: its current branch is read. decided: one of its branches was read already.
    """

    kind: str
    where: Place
    active: bool = True
    decided: bool = False
    waiting: bool = False
    """Its condition is still being read, or its next pattern is expected."""
    condition: list[tuple[str, bool | None]] = field(default_factory=list)
    subject: Word | None = None


class Branches:
    """The open branchings at one point of the script, outermost first."""

    def __init__(self, notes: list[Problem]) -> None:
        self.open: list[Branching] = []
        self.notes = notes
        """Warnings about the branches that were read."""

    @property
    def is_active(self) -> bool:
        """Whether the commands at this point are read."""
        return all(branching.active for branching in self.open)

    def innermost(self, kind: str) -> Branching | None:
        """Return the innermost open branching if it is of this kind."""
        return self.open[-1] if self.open and self.open[-1].kind == kind else None

    def is_in_loop(self) -> bool:
        """Return whether this point is in a loop whose passes are not counted, unlike those of `for NAME in a b`."""
        return any(branching.kind == "loop" and not branching.decided for branching in self.open)

    def begin(self, kind: str, where: Place, subject: Word | None = None, is_active: bool = True) -> None:
        active = is_active and kind != "case"
        self.open.append(Branching(kind, where, active, waiting=kind not in ("loop", "{"), subject=subject))

    def end(self) -> None:
        self.open = self.open[:-1]

    def end_of_case(self) -> None:
        """Handle `;;`, after which the next pattern follows."""
        if case := self.innermost("case"):
            case.active, case.waiting = False, True

    def on_if_keyword(self, keyword: str, where: Place) -> None:
        """Handle `then`, `else` or `elif` of the innermost `if`."""
        branching = self.innermost("if")
        if branching is None:
            return
        if keyword == "then":
            self._then(branching)
        elif keyword in ("else", "elif"):
            branching.where = where
            branching.active, branching.waiting, branching.condition = not branching.decided, keyword == "elif", []

    def _then(self, branching: Branching) -> None:
        holds = conditions.combine(branching.condition)
        branching.waiting, branching.active = False, not branching.decided and holds is not False
        if branching.active and holds is None:
            self._note(branching.where, "then")
        branching.decided |= branching.active

    def on_case_patterns(self, branching: Branching, patterns: str, where: Place) -> None:
        """Handle the patterns `a|b` of a `case`. If its subject is unknown, the branch `*` is read."""
        subject = branching.subject
        known = subject is not None and subject.is_known
        each = [pattern.strip().strip("'\"") for pattern in patterns.split("|")]
        fits = any(fnmatchcase(subject.text, pattern) if subject and known else pattern == "*" for pattern in each)
        branching.active = fits and not branching.decided
        branching.decided |= fits
        if not known:
            self._note(where, f"{patterns.strip()})")

    def note_loop(self, name: str, values: Sequence[str], where: Place) -> None:
        """Warn that only the first value of `for NAME in a b` is read."""
        self.open[-1].decided = "$" not in "".join(values)
        if len(values) > 1:
            what = f"this loop has {len(values)} values for {name}; only the first, `{values[0]}`, is read"
            self.notes.append(Problem(what, where, severity="warning", id="migrate-branch-read"))

    def _note(self, where: Place, branch: str) -> None:
        """Warn about a branch that is read although its condition is unknown."""
        if self.is_active:
            what = f"only the branch `{branch}` is read, because the condition is unknown"
            hint = "set the condition's variables with --var NAME=VALUE"
            self.notes.append(Problem(what, where, hint, severity="warning", id="migrate-branch-read"))
