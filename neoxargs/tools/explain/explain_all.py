"""`deepy explain --all FILE ...`: the resolved configuration as YAML, each line with where it comes from.

It is a configuration itself, and resolves to the same: what is derived here is written there.
"""

from __future__ import annotations

from typing import Any

from neoxargs.registry import ABSENT, Parameter
from neoxargs.resolve.config import Config
from neoxargs.tools.explain.provenance import because
from neoxargs.tools.migrate.yaml_write import Setting, yaml_text


def annotated_yaml(config: Config) -> str:
    """Everything that is written, derived, or another year's default, each line with its source behind it."""
    settings = {p.name: Setting(value.value, behind=_one_line(because(p.name, config)))
                for p, value in config.items() if _is_shown(p, value.value, config)}  # fmt: skip
    empty = config.sections - {name.rpartition(".")[0] for name in settings}
    left = sum(1 for p, _ in config.items() if p.name not in settings)
    head = [
        "The resolved configuration, by deepy explain --all; it resolves to the same.",
        f"{left} parameters that are not here have their defaults (docs/parameters.md).",
    ]
    assert config.dialect is not None  # only a rank's configuration has none
    settings["dialect"] = Setting(config.dialect.name, behind=config.dialect.reason)
    return yaml_text(settings, head, empty)


def to_json(config: Config) -> dict[str, Any]:
    """The same for a program: every parameter, with its value and why."""
    values = {p.name: value.value for p, value in config.items() if value.value is not ABSENT and not p.replaced_by}
    return {name: {"value": value, "because": because(name, config)} for name, value in values.items()}


def _is_shown(parameter: Parameter, value: Any, config: Config) -> bool:
    if value is ABSENT or parameter.replaced_by or parameter.name in LOOKED_UP:
        return False
    return config.is_set(parameter.name) or value != parameter.default


#: Of this machine and this moment.
LOOKED_UP = ("user_script", "config_files", "git_hash")


def _one_line(text: str) -> str:
    return " ".join(text.split())
