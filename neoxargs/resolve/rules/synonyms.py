"""One setting under several names: Megatron's, DeepSpeed's, GPT-NeoX's. Written twice, it must be written alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from operator import eq
from typing import Any, TypeVar

from neoxargs.resolve.rules.rule import DERIVATIONS, Contradiction, Rule

T = TypeVar("T")
Default = Callable[[str], Any]


def agreed(spellings: Mapping[str, T | None], alike: Callable[[T, T], bool] = eq, advice: str = "") -> T | None:
    """What the written ones (not None) say, or None if nobody wrote any; Contradiction (advice) if two differ."""
    written = [(name, value) for name, value in spellings.items() if value is not None]
    for (one, value), (other, different) in pairwise(written):
        if not alike(value, different):
            raise Contradiction(
                f"{one} ({yaml_form(value)}) and {other} ({yaml_form(different)}) are two values for one setting",
                advice or f"keep {one} or {other}",
                about=[one, other],
                id="one-value-per-setting",
            )
    return written[0][1] if written else None


def same(top: str, nested: str, otherwise: str = "") -> Callable[..., dict[str, Any]]:
    """Register that a top-level parameter and a key of a DeepSpeed section are one setting.

    Written either way both hold it; written nowhere, both hold the default of the top-level name (or of `otherwise`).
    """

    def follow(top_value: Any, nested_value: Any, default: Default) -> dict[str, Any]:
        value = agreed({top: top_value, nested: nested_value})
        if value is None:
            value = default(otherwise or top)
        return {top: value, nested: value}

    follow.__doc__ = f"{top} and {nested} are one setting"
    follow.__name__ = top
    DERIVATIONS.append(Rule(follow, (top, nested), (top, nested, "default")))
    return follow


def names_of_setting(name: str) -> tuple[str, ...]:
    """All names of a setting that has several (`zero_stage` and `zero_optimization.stage`), else the one."""
    rules = (rule.results for rule in DERIVATIONS if name in rule.results and {*rule.results} <= {*rule.inputs})
    return next(rules, (name,))


def yaml_form(value: Any) -> str:
    """A value as a YAML file would have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
