"""The values that every rank's script receives: those that are set or differ from deepy's or GPT-NeoX's default."""

from __future__ import annotations

from typing import Any

from neoxargs.config.config import Config
from neoxargs.registry import ABSENT, history
from neoxargs.targets.nesting import nested


def train_values(config: Config) -> dict[str, Any]:
    """Return the values, nested as in GPT-NeoX's `--megatron_config`."""
    return nested(rank_values(config), sorted(config.sections))


def rank_values(config: Config) -> dict[str, Any]:
    """Return the values by dotted name."""
    # GPT-NeoX's own scripts have its newest defaults, whatever the dialect of the files.
    other_default = history.changed_defaults(history.NEWEST)
    return {
        p.name: value.value
        for p, value in config.items()
        if p.to
        and value.value is not ABSENT
        and (p.name in other_default or value.source.set_by_user or value.value != p.default)
    }
