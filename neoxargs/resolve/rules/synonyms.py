"""One setting with several names: Megatron's, DeepSpeed's, GPT-NeoX's. Names that are set must have equal values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from operator import eq
from typing import Any, TypeVar

from neoxargs.resolve.rules.rule import DERIVATIONS, Contradiction, Rule

T = TypeVar("T")
Default = Callable[[str], Any]


def agreed_value(values: Mapping[str, T | None], equal: Callable[[T, T], bool] = eq, advice: str = "") -> T | None:
    """Return the common value of the names that are set (not None), or None if none is.

    Raises Contradiction, with `advice` as its hint, if two of the values differ.
    """
    written = [(name, value) for name, value in values.items() if value is not None]
    # Neighbours are enough: if all of them are equal, all values are.
    for (one, value), (other, different) in pairwise(written):
        if not equal(value, different):
            raise Contradiction(
                f"{one} ({yaml_form(value)}) and {other} ({yaml_form(different)}) are the same setting"
                " and must be equal",
                advice or f"remove {one} or {other}",
                about=[one, other],
                id="one-value-per-setting",
            )
    return written[0][1] if written else None


def ignored(name: str, used: str) -> str:
    """Return the hint for two names with different values, of which GPT-NeoX read only one."""
    return f"remove one of them; GPT-NeoX ignored {name} and used {used}"


def synonyms(top: str, nested: str) -> None:
    """Register that a top-level parameter and a key of a DeepSpeed section are the same setting.

    If either is set, both get its value; otherwise both get the default of `top`, or of ZeRO's key.
    """
    of_zero = nested.startswith("zero_optimization.")

    def set_both(top_value: Any, nested_value: Any, default: Default) -> dict[str, Any]:
        both = {top: top_value, nested: nested_value}
        value = agreed_value(both, advice=ignored(top, nested) if of_zero else "")
        if value is None:
            value = default(nested if of_zero else top)
        return {top: value, nested: value}

    set_both.__doc__ = f"{top} and {nested} are the same setting"
    set_both.__name__ = top
    DERIVATIONS.append(Rule(set_both, (top, nested), (top, nested, "default")))


def names_of_setting(name: str) -> tuple[str, ...]:
    """Return every name of the setting: `zero_stage` and `zero_optimization.stage`, or only `name` itself."""
    rules = (rule.results for rule in DERIVATIONS if name in rule.results and {*rule.results} <= {*rule.inputs})
    return next(rules, (name,))


def yaml_form(value: Any) -> str:
    """Format a value as a YAML file would."""
    return str(value).lower() if isinstance(value, bool) else str(value)
