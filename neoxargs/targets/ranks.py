"""The values that every rank's script receives: those that are set or differ from deepy's or GPT-NeoX's default."""

from __future__ import annotations

from typing import Any

from neoxargs.config.config import Config
from neoxargs.config.value import Value
from neoxargs.registry import ABSENT, Parameter, history
from neoxargs.targets.nesting import nested


def train_values(config: Config) -> dict[str, Any]:
    """Return the values, nested as in GPT-NeoX's `--megatron_config`."""
    return nested(rank_values(config), sorted(config.sections))


def rank_values(config: Config) -> dict[str, Any]:
    """Return the values by dotted name."""
    return {p.name: value.value for p, value in config.items() if p.to and _differs_for_ranks(p, value)}


def _differs_for_ranks(parameter: Parameter, value: Value) -> bool:
    """Return whether a rank of this package or of GPT-NeoX would get another value from its own defaults."""
    if value.value is ABSENT:
        return False
    # GPT-NeoX's own scripts have its newest defaults, whatever the dialect of the files.
    neox = history.default_at(parameter.name, history.NEWEST)
    return value.source.set_by_user or value.value != parameter.default or value.value != neox
