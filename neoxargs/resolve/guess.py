"""The warning about a guessed dialect: which values of a configuration depend on the guess."""

from __future__ import annotations

from functools import cache

from neoxargs.base.problems import Problem
from neoxargs.config.config import Config
from neoxargs.config.dialect import Dialect
from neoxargs.registry import REGISTRY
from neoxargs.registry.history import NEWEST, changes
from neoxargs.resolve.compare.differences import differences
from neoxargs.resolve.rules import DERIVATIONS
from neoxargs.resolve.yaml.nodes import format_node, node_of

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
    return bool(changes(name)) or name in derived_from_dialect()


@cache
def _same_in_every_dialect() -> frozenset[str]:
    """Return the parameters that no dialect changes in the training."""
    return frozenset(
        p.name for p in REGISTRY.parameters.values() if p.effect == "generation" or not follows_dialect(p.name)
    )


def guess_warnings(used: Config, other: Config) -> list[Problem]:
    """Return a warning if another dialect would change the training.

    used: the configuration in the guessed dialect.
    other: the same in the dialect at the other end of the range that the keys allow.
    """
    assert used.dialect and other.dialect
    read = [each for each in differences(used, other, _same_in_every_dialect()) if any(each.is_read)]
    found = {each.name: [format_node(node_of(value)) for value in each.values] for each in read}
    changed = sorted(found, key=lambda name: REGISTRY.parameters[name].effect in ROUNDING)
    first_only = FIRST_ITERATION if used.dialect.date == NEWEST else ()
    if all(REGISTRY.parameters[name].effect in ROUNDING or name in first_only for name in changed):
        return []
    values = [f"{name} {' instead of '.join(found[name])}" for name in changed]
    what = (
        f"no dialect is set; because {used.dialect.reason}, the defaults of {used.dialect.name} apply, not those of "
        f"{other.dialect.name}: {', '.join(values)}"
    )
    hint = f"set dialect to {used.dialect.name}, {other.dialect.name} or a date in between"
    return [Problem(what, hint=hint, severity="warning", id="dialect-guessed", about=("dialect", *changed))]


def other_dialect(dialect: Dialect | None) -> Dialect | None:
    """Return the dialect at the other end of the range that the keys allow; None if nothing was guessed."""
    return Dialect(dialect.or_else, "") if dialect and dialect.or_else else None
