"""How a rule is declared: a function whose argument names are the parameters that it reads.

    @derive
    def num_kv_heads(num_attention_heads: int) -> int:
        "every attention head has its own keys and values"
        return num_attention_heads

    @check
    def min_lr_at_most_lr(min_lr: float, lr: float) -> Findings:
        '''The learning rate decays from lr to min_lr. With min_lr above lr it would rise ...

            lr: 0.001
            min_lr: 0.01
        '''
        if min_lr > lr:
            yield refuse(f"min_lr ({min_lr}) must be at most lr ({lr})", "set ...")

`.` in a parameter's name is `__` in a rule (`zero_optimization__stage`). A derivation is named after its result, or
takes the names of its results as `@derives("lr", "optimizer.params.lr")`; its docstring begins with the reason that
`explain` gives for the value. It runs when its result is not set. A derivation with its own result among its inputs
always runs and receives the value that is set, or None (`train_batch_size` = a x b x c is solved that way for
whichever is missing). A result of `None` keeps the default. Further inputs are `gpus` (the number of processes),
`samples_per_epoch` (the samples of one pass over the training data, with `train_epochs`),
`written` (the names that the user set), `sections` (the sections that the user wrote), `auto` (the names set to
`auto`), `day` (the date of the dialect) and `default` (name -> its default in the dialect).

A rule that can report a problem is named after the constraint: `rotary_dims_even` reports `rotary-dims-even`. Its
docstring says what would go wrong on the GPUs and ends with an example, some lines of YAML to add to the smallest
model: `deepy explain rotary-dims-even` shows both, and a test runs the example.

A rule that training, validation and test data have in common is declared once, with `check_each_split` or
`derive_each_split`: SPLIT stands for train, valid or test in its name, arguments and docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, Literal, NamedTuple, TypeVar

from neoxargs.base.record import Record
from neoxargs.facts.data import SPLITS
from neoxargs.facts.mistakes import Mistakes

F = TypeVar("F", bound=Callable[..., Any])


class Finding(Record):
    """A rule's objection to a configuration; `resolve/derive.py` adds the rule's id and a place to make a Problem."""

    sentence: str
    advice: str = ""
    """The hint: what to write instead."""
    about: tuple[str, ...] = ()
    """The parameters or sections involved; empty means all that the rule reads."""
    severity: Literal["error", "warning"] = "error"
    inside: str = ""
    """The key in the value of the first parameter that it is about, or the name of an entry of a list (`phase 2`)."""
    id: str = ""
    """Set only where several rules report the same problem; otherwise the rule's id is used."""


#: What a cross-check yields.
Findings = Iterator[Finding]


def refuse(sentence: str, advice: str = "", about: Iterable[str] = ()) -> Finding:
    """Return an error: the sentence, the hint, and the parameters involved if not all that the rule reads."""
    return Finding(sentence, advice, tuple(about))


def warn(sentence: str, advice: str = "", about: Iterable[str] = ()) -> Finding:
    """Return a warning, which does not stop the run; arguments as of `refuse`."""
    return Finding(sentence, advice, tuple(about), "warning")


def refuse_entries(parameter: str, mistakes: Mistakes) -> Findings:
    """Yield an error for each mistake in the entries of a parameter's value, at its place."""
    for name, what, advice in mistakes.problems:
        yield Finding(f"{parameter}, {name}: {what}", advice, (parameter,), inside=name)


def refuse_phases(parameter: str, listed: Sequence[Any] | None, parse: Callable[[], object]) -> Findings:
    """Yield an error for each mistake in the phases that a parameter lists. parse: reads them; raises Mistakes."""
    if listed is None:
        return
    if not listed:
        yield refuse(f"{parameter} has no phases", "remove it, or list at least one phase", about=[parameter])
        return
    try:
        parse()
    except Mistakes as mistakes:
        yield from refuse_entries(parameter, mistakes)


def true_names(**values: object) -> list[str]:
    """Return the names of the values that are true or set. `.` in a name is `__`, as in a rule's arguments."""
    return [_dotted(name) for name, value in values.items() if value]


class Contradiction(Exception):
    """Raised by a derivation whose inputs contradict each other."""

    def __init__(self, sentence: str, advice: str = "", about: Iterable[str] = (), id: str = "") -> None:
        self.finding = Finding(sentence, advice, tuple(about), id=id)
        super().__init__(sentence)


class Rule(NamedTuple):
    """A registered derivation or check."""

    function: Callable[..., Any]
    results: tuple[str, ...]
    """The parameters that the rule derives; empty for a check."""
    inputs: tuple[str, ...]
    even_without: tuple[str, ...] = ()
    """The inputs without which a derivation runs too, with None; it then returns the results that are certain."""

    @property
    def id(self) -> str:
        """The id of the problem it reports: the function's name in kebab-case."""
        return self.function.__name__.replace("_", "-")

    @property
    def reason(self) -> str:
        """Why the derived value is what it is: the first paragraph of the docstring."""
        return _first_paragraph(self.function.__doc__ or "")

    @property
    def protects_from(self) -> str:
        """What would go wrong without the rule: the docstring without a derivation's reason and without the example."""
        paragraphs = self._paragraphs[bool(self.results) :]
        return " ".join(" ".join(text for text in paragraphs if not _is_example(text)).split())

    @property
    def example(self) -> str:
        """YAML that the rule refuses, added to the smallest model: the indented end of the docstring, or ''."""
        from textwrap import dedent  # only `explain` needs it

        last = self._paragraphs[-1]
        return dedent(last).strip() + "\n" if _is_example(last) else ""

    @property
    def _paragraphs(self) -> list[str]:
        return (self.function.__doc__ or "").split("\n\n")


@cache  # a search of layouts asks for it very often
def _first_paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())


def _is_example(paragraph: str) -> bool:
    """Whether a paragraph is indented deeper than the docstring of a function."""
    return paragraph.startswith(" " * 8)


DERIVATIONS: list[Rule] = []
CHECKS: list[Rule] = []


def derive(function: F) -> F:
    """Register a derivation of the parameter that the function is named after."""
    return derives(function.__name__)(function)


def derives(*results: str, even_without: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Register a derivation of these parameters: the function returns the value, or {name: value} for several."""

    def register(function: F) -> F:
        DERIVATIONS.append(Rule(function, tuple(map(_dotted, results)), _inputs(function), even_without))
        return function

    return register


def check(function: F) -> F:
    """Register a cross-check: the function yields findings made by `refuse` or `warn`, or returns one, or None."""
    CHECKS.append(Rule(function, (), _inputs(function)))
    return function


def check_each_split(function: F) -> F:
    """Register a cross-check for each split, which is the function's first argument.

    In the docstring's example, `{train}` stands for two datasets in the check of train, and for one in the others.
    """
    CHECKS.extend(_rules_of_splits(function, ()))
    return function


def derive_each_split(function: F) -> F:
    """Register a derivation for each split, which is the function's first argument."""
    DERIVATIONS.extend(_rules_of_splits(function, (function.__name__,)))
    return function


def _rules_of_splits(function: Callable[..., Any], results: tuple[str, ...]) -> Iterator[Rule]:
    for split in SPLITS:
        rule: Callable[..., Any] = partial(function, split)
        rule.__name__, rule.__doc__ = _of_split(function.__name__, split), _of_split(function.__doc__ or "", split)
        names = [[_of_split(name, split) for name in names] for names in (results, _inputs(function)[1:])]
        yield Rule(rule, *map(tuple, names))


def _of_split(text: str, split: str) -> str:
    text = text.replace("SPLIT", split)
    for each in SPLITS:
        text = text.replace(f"{{{each}}}", "[a, b]" if each == split else "a")
    return text


def _inputs(function: Callable[..., Any]) -> tuple[str, ...]:
    code = function.__code__
    return tuple(map(_dotted, code.co_varnames[: code.co_argcount]))


def _dotted(name: str) -> str:
    return name.replace("__", ".")
