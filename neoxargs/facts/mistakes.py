"""What is wrong with the entries of a value, such as the phases of a schedule."""

from __future__ import annotations

from collections.abc import Sequence


class Mistakes(Exception):
    """The problems of a value: for each the name of the entry, what is wrong with it, and what to write instead."""

    def __init__(self, problems: Sequence[tuple[str, str, str]]) -> None:
        self.problems = problems
        super().__init__(problems)
