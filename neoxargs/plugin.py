"""The names for plugins. They stay here when their modules move."""

from neoxargs.base.record import replace
from neoxargs.hosts.launchers import THROUGH_RUNNER, Launcher, Start, add_launcher
from neoxargs.registry import Group, param
from neoxargs.registry.plugins import choices
from neoxargs.registry.types import (
    BelowOne,
    Count,
    Fraction,
    Layers,
    Natural,
    NonNegative,
    Paths,
    Port,
    Positive,
    Seed,
)

__all__ = [
    "THROUGH_RUNNER", "BelowOne", "Count", "Fraction", "Group", "Launcher", "Layers", "Natural", "NonNegative", "Paths",
    "Port", "Positive", "Seed", "Start", "add_launcher", "choices", "param", "replace",
]  # fmt: skip
