"""How a rule is declared: a function whose argument names are the parameters that it reads.

    @derive
    def num_kv_heads(num_attention_heads: int) -> int:
        "every attention head has keys and values of its own"
        return num_attention_heads

    @check
    def min_lr_at_most_lr(min_lr: float, lr: float) -> Finding | None:
        '''The learning rate decays from lr to min_lr. With min_lr above lr it would rise ...

            lr: 0.001
            min_lr: 0.01
        '''
        return None if min_lr <= lr else refuse(f"min_lr ({min_lr}) must be at most lr ({lr})", "write ...")

`.` in a parameter's name is `__` in a rule (`zero_optimization__stage`). A derivation is named after its result, or
takes the names of its results as `@derives("lr", "optimizer.params.lr")`; its docstring begins with the reason that
`explain` gives for the value. It runs when its result was not written. One that lists its own result among its inputs
always runs and receives what was written, or None (that is how `train_batch_size` = a x b x c is solved for whichever
is missing). `None` as a result leaves the default. Inputs too are `gpus` (how many processes run), `written` (the
names the user gave), `sections` (the sections the user gave), `auto` (the names given as `auto`) and `default`
(name -> its default in the dialect).

A rule that can find something is named after the constraint: `rotary_dims_even` is the problem `rotary-dims-even`.
Its docstring says what would go wrong on the GPUs, and ends in an example, some lines of YAML over the smallest model:
`deepy explain rotary-dims-even` shows both, and a test runs the example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from textwrap import dedent
from typing import Any, Literal, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Finding:
    """What a rule has against a configuration; `derive` makes a Problem of it, with the rule's id and a place."""

    sentence: str
    advice: str = ""
    """What to write instead."""
    about: tuple[str, ...] = ()
    """The parameters (or sections) that take part; empty for all that the rule reads."""
    severity: Literal["error", "warning"] = "error"
    id: str = ""
    """Only where several rules find the same problem, else it is the rule's."""


def refuse(sentence: str, advice: str = "", about: Iterable[str] = ()) -> Finding:
    """An error: `hidden_size (60) must be even`, what to write, and which parameters if not all that the rule reads."""
    return Finding(sentence, advice, tuple(about))


def warn(sentence: str, advice: str = "", about: Iterable[str] = ()) -> Finding:
    """The same, where the run can start all the same."""
    return Finding(sentence, advice, tuple(about), "warning")


class Contradiction(Exception):
    """Raised by a derivation whose inputs cannot all hold."""

    def __init__(self, sentence: str, advice: str = "", about: Iterable[str] = (), id: str = "") -> None:
        self.finding = Finding(sentence, advice, tuple(about), id=id)
        super().__init__(sentence)


@dataclass(frozen=True)
class Rule:
    """One function of the table."""

    function: Callable[..., Any]
    results: tuple[str, ...]
    """What it derives; empty for a check."""
    inputs: tuple[str, ...]

    @property
    def id(self) -> str:
        """Of the problem that it finds: its name in kebab-case."""
        return self.function.__name__.replace("_", "-")

    @property
    def reason(self) -> str:
        """Why the result is what it is; the first paragraph of the docstring."""
        return " ".join(self._paragraphs[0].split())

    @property
    def protects_from(self) -> str:
        """What would go wrong without it; of a derivation, what stands below the reason."""
        paragraphs = self._paragraphs[bool(self.results) :]
        return " ".join(" ".join(text for text in paragraphs if not _is_example(text)).split())

    @property
    def example(self) -> str:
        """YAML over the smallest model that it refuses: the indented lines at the end of the docstring, or nothing."""
        last = self._paragraphs[-1]
        return dedent(last).strip() + "\n" if _is_example(last) else ""

    @property
    def _paragraphs(self) -> list[str]:
        return (self.function.__doc__ or "").split("\n\n")


def _is_example(paragraph: str) -> bool:
    """Is it indented deeper than the docstring of a function?"""
    return paragraph.startswith(" " * 8)


DERIVATIONS: list[Rule] = []
CHECKS: list[Rule] = []


def derive(function: F) -> F:
    """Register a derivation of the parameter that the function is named after."""
    return derives(function.__name__)(function)


def derives(*results: str) -> Callable[[F], F]:
    """Register a derivation of these parameters: the function returns the value, of several {name: value}."""

    def register(function: F) -> F:
        DERIVATIONS.append(Rule(function, tuple(map(_dotted, results)), _inputs(function)))
        return function

    return register


def check(function: F) -> F:
    """Register a cross-check: it returns None, or what it refuses or warns of."""
    CHECKS.append(Rule(function, (), _inputs(function)))
    return function


def _inputs(function: Callable[..., Any]) -> tuple[str, ...]:
    code = function.__code__
    return tuple(map(_dotted, code.co_varnames[: code.co_argcount]))


def _dotted(name: str) -> str:
    return name.replace("__", ".")
