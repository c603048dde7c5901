"""Secrets among the values of a configuration: no command shows them, no record contains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neoxargs.base import problems
from neoxargs.config.config import Config
from neoxargs.config.value import Value

MASK = "***"


def masked(name: str, value: Any) -> Any:
    """Return a value with asterisks in place of each secret. name: the parameter or the key that has the value."""
    if not _contains_secret(name, value):
        return value
    if isinstance(value, Mapping):
        return {key: masked(str(key), each) for key, each in value.items()}
    return [masked(name, each) for each in value] if isinstance(value, list | tuple) else MASK


def secret_values(config: Config) -> list[str]:
    """Return the names of the parameters that are set to a secret, to a text or a section that contains one."""
    return [name for name, value in config.values.items() if _contains_secret(name, value.value)]


def _contains_secret(name: str, value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_contains_secret(str(key), each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return any(_contains_secret(name, each) for each in value)
    text = f"{name}: {value}"
    return bool(value) and problems.without_secrets(text) != text


def without_secrets(config: Config) -> Config:
    """Return the configuration with asterisks in place of secrets."""
    values = {name: Value(masked(name, value.value), value.source) for name, value in config.values.items()}
    shown = Config(values, config.sections, config.warnings, config.dialect, config.broken)
    shown.auto = config.auto
    return shown
