"""What every rank's script receives: all values that neither the registry's nor GPT-NeoX's defaults would give it."""

from __future__ import annotations

from typing import Any

from neoxargs.launch.targets.nesting import nested
from neoxargs.registry import ABSENT, Parameter, history
from neoxargs.resolve.config import Config
from neoxargs.resolve.value import Value


def train_values(config: Config) -> dict[str, Any]:
    """The values nested like GPT-NeoX's own `--megatron_config`."""
    return nested(rank_values(config), sorted(config.sections))


def rank_values(config: Config) -> dict[str, Any]:
    """The same by dotted name."""
    return {p.name: value.value for p, value in config.items() if p.to and _differs_for_ranks(p, value)}


def _differs_for_ranks(parameter: Parameter, value: Value) -> bool:
    """Neither the reader of a rank (the registry's defaults) nor a GPT-NeoX script (its own) would know it."""
    if value.value is ABSENT:
        return False
    neox = history.default_at(parameter.name, history.NEWEST)
    return value.source.set_by_user or value.value != parameter.default or value.value != neox
