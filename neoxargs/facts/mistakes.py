"""What is wrong with the entries of a value, such as the phases of a schedule."""

from __future__ import annotations

from collections.abc import Sequence


class Mistakes(Exception):
    """The problems of a value: for each the name of the entry, what is wrong with it, and what to write instead."""

    def __init__(self, problems: Sequence[tuple[str, str, str]]) -> None:
        self.problems = problems
        super().__init__(problems)

    @property
    def wrong(self) -> str:
        return "; ".join(f"{name}: {what}" for name, what, _ in self.problems)

    @property
    def advice(self) -> str:
        return "; ".join(dict.fromkeys(hint for _, _, hint in self.problems))
