"""How a rule is declared: a function whose name is its result and whose argument names are its inputs.

    @derive
    def padded_vocab_size(vocab_size, make_vocab_size_divisible_by, model_parallel_size):
        "the vocabulary rounded up so that every tensor parallel rank holds an equal, aligned share"
        ...

`.` in a parameter's name is `__` in a rule (`zero_optimization__stage`). A rule runs when its result was
not written. A rule that lists its own result among its inputs always runs and receives what was written,
or None (that is how `train_batch_size` = a x b x c is solved for whichever is missing). `None` as a result
leaves the default. Inputs too are `gpus` (how many processes run), `written` (the names the user gave), `sections`
(the sections the user gave), `auto` (the names given as `auto`) and `default` (name -> its default in the dialect).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
#: A sentence about what cannot be, and what to write instead.
Refusal = tuple[str, str] | None


class Contradiction(Exception):
    """Raised by a rule whose inputs cannot all hold: a sentence, and what to write instead."""

    def __init__(self, sentence: str, hint: str = "") -> None:
        self.sentence, self.hint = sentence, hint
        super().__init__(sentence)


@dataclass(frozen=True)
class Rule:
    """One function of the table."""

    function: Callable[..., Any]
    results: tuple[str, ...]
    """What it derives; empty for a check."""
    inputs: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Why the result is what it is; the function's docstring."""
        return " ".join((self.function.__doc__ or "").split())


DERIVATIONS: list[Rule] = []
CHECKS: list[Rule] = []


def derive(function: F) -> F:
    """Register a derivation of the parameter that the function is named after."""
    return derives(function.__name__)(function)


def derives(*results: str) -> Callable[[F], F]:
    """Register a derivation of several parameters at once: the function returns {name: value}."""

    def register(function: F) -> F:
        DERIVATIONS.append(Rule(function, tuple(map(_dotted, results)), _inputs(function)))
        return function

    return register


def check(function: F) -> F:
    """Register a cross-check: it returns None, a sentence, or a sentence and a hint."""
    CHECKS.append(Rule(function, (), _inputs(function)))
    return function


def _inputs(function: Callable[..., Any]) -> tuple[str, ...]:
    code = function.__code__
    return tuple(map(_dotted, code.co_varnames[: code.co_argcount]))


def _dotted(name: str) -> str:
    return name.replace("__", ".")
