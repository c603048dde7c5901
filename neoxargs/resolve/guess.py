"""The warning about a guessed dialect: which values of a configuration depend on the guess."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from neoxargs.base.problems import Problem
from neoxargs.config.config import Config
from neoxargs.config.dialect import Dialect
from neoxargs.registry import REGISTRY
from neoxargs.registry.history import NEWEST, changes
from neoxargs.resolve.effects.unread import unread_by_run
from neoxargs.resolve.rules import DERIVATIONS
from neoxargs.resolve.yaml.nodes import format_node, node_of

#: A second name of gradient_clipping.
SECOND_NAMES = ("clip_grad",)
#: Parameters of the first iteration only. No file of GPT-NeoX can state them, and today's GPT-NeoX reads a file without
#: `dialect` as deepy does, so this difference alone is no reason for a warning.
FIRST_ITERATION = ("warmup_from_zero",)
#: Effects of parameters that change training only by rounding; the warning names them last.
ROUNDING = ("layout", "memory")


@cache
def derived_from_dialect() -> frozenset[str]:
    """Return the parameters whose value a rule derives from the date of the dialect."""
    return frozenset(name for rule in DERIVATIONS if "day" in rule.inputs for name in rule.results)


def follows_dialect(name: str) -> bool:
    """Whether the default of a parameter depends on the dialect."""
    return name not in SECOND_NAMES and bool(changes(name) or name in derived_from_dialect())


def guess_warnings(used: Config, other: Config) -> list[Problem]:
    """Return a warning if another dialect would change the training.

    used: the configuration in the guessed dialect.
    other: the same in the dialect at the other end of the range that the keys allow.
    """
    assert used.dialect and other.dialect
    changed = sorted(_changed(used, other), key=lambda name: REGISTRY.parameters[name].effect in ROUNDING)
    if all(REGISTRY.parameters[name].effect in ROUNDING or _is_of_today(name, used) for name in changed):
        return []
    values = [f"{name} {_text(used, name)} instead of {_text(other, name)}" for name in changed]
    what = (
        f"no dialect is set; because {used.dialect.reason}, the defaults of {used.dialect.name} apply, not those of "
        f"{other.dialect.name}: {', '.join(values)}"
    )
    hint = f"set dialect to {used.dialect.name}, {other.dialect.name} or a date in between"
    return [Problem(what, hint=hint, severity="warning", id="dialect-guessed", about=("dialect", *changed))]


def _is_of_today(name: str, used: Config) -> bool:
    """Whether a value is the one of GPT-NeoX's newest code and differs only in the first of many iterations."""
    return name in FIRST_ITERATION and used.dialect is not None and used.dialect.date == NEWEST


def other_dialect(dialect: Dialect | None) -> Dialect | None:
    """Return the dialect at the other end of the range that the keys allow; None if nothing was guessed."""
    return Dialect(dialect.or_else, "") if dialect and dialect.or_else else None


def _changed(used: Config, other: Config) -> Iterator[str]:
    """Yield the parameters that the training reads and that have different values."""
    unread = [unread_by_run(used), unread_by_run(other)]
    for name, parameter in REGISTRY.parameters.items():
        if parameter.effect == "generation" or not follows_dialect(name) or name in used.broken | other.broken:
            continue
        if used.get(name) != other.get(name) and not all(is_unread(name) for is_unread in unread):
            yield name


def _text(config: Config, name: str) -> str:
    return format_node(node_of(config.get(name)))
