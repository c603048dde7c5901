"""`deepy explain --all FILE ...`: the resolved configuration as YAML, each line with the source of its value.

The output is itself a configuration that resolves to the same values; derived values are written out.
"""

from __future__ import annotations

from typing import Any

from neoxargs.config.config import Config
from neoxargs.registry import ABSENT
from neoxargs.resolve.provenance import source_of
from neoxargs.resolve.yaml.write import Setting, yaml_text


def annotated_yaml(config: Config) -> str:
    """Return YAML of all values that are set, derived, or another dialect's default, with their sources as comments."""
    settings = {}
    for p, value in config.items():
        is_hidden = value.value is ABSENT or p.replaced_by or p.name in FROM_ENVIRONMENT
        if not is_hidden and (config.is_set(p.name) or value.value != p.default):
            settings[p.name] = Setting(value.value, behind=" ".join(source_of(p.name, config).split()))
    empty = config.sections - {name.rpartition(".")[0] for name in settings}
    left = sum(1 for p, _ in config.items() if p.name not in settings)
    head = [
        "The resolved configuration, printed by deepy explain --all.",
        "Used as a configuration file, this file resolves to the same values as the original files.",
        f"The {left} parameters that are not listed have their default values (docs/parameters.md).",
    ]
    assert config.dialect is not None  # only the configuration that a rank receives has no dialect
    settings["dialect"] = Setting(config.dialect.name, behind=config.dialect.reason)
    return yaml_text(settings, head, empty)


def to_json(config: Config) -> dict[str, Any]:
    """Return every parameter with its value and source."""
    values = {p.name: value.value for p, value in config.items() if value.value is not ABSENT and not p.replaced_by}
    return {name: {"value": value, "source": source_of(name, config)} for name, value in values.items()}


#: Parameters that depend on the machine and the time of the start.
FROM_ENVIRONMENT = ("user_script", "config_files", "git_hash")
