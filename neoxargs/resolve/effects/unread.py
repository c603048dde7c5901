"""Which parameters no run reads, whether the user set them or not."""

from __future__ import annotations

from collections.abc import Callable

from neoxargs.config.config import Config
from neoxargs.config.value import DEFAULT, Value
from neoxargs.registry import REGISTRY
from neoxargs.resolve.effects.switched_off import switched_off_by


def unread_by_run(config: Config) -> Callable[[str], bool]:
    """Return a function that tells whether no run with this configuration reads a parameter."""
    # Without sources: an explicit `false` disables other parameters as much as the default does.
    values = {name: Value(value.value, DEFAULT) for name, value in config.values.items()}
    plain = Config(values, config.sections, broken=config.broken)
    return lambda name: REGISTRY.parameters[name].effect == "none" or switched_off_by(plain, name) is not None
