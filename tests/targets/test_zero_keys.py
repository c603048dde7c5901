"""Every key of `zero_optimization`, written in YAML, is what the installed DeepSpeed then works with."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from neoxargs.registry import REGISTRY, Parameter
from neoxargs.targets.nesting import nested
from tests.support.targets import COMPANIONS, configured, other_value, read_by_deepspeed

#: Values that the type alone does not suggest.
OTHERS: dict[str, Any] = {
    "zero_optimization.offload_param.nvme_path": "/local",
    "zero_optimization.offload_optimizer.nvme_path": "/local",
    "zero_optimization.overlap_comm": True,
    "zero_optimization.leaf_module.classes": ["torch.nn.Linear"],
    "zero_optimization.leaf_module.names": ["experts"],
    "zero_optimization.leaf_module.name_suffixes": ["mlp"],
    "zero_optimization.zenflow.select_interval": 3,
    "zero_optimization.zenflow.update_interval": 3,
}
KEYS = [p for p in REGISTRY.parameters.values() if p.name.startswith("zero_optimization.") and "deepspeed" in p.to]


def worked_with(config: Any, parameter: Parameter) -> Any:
    """The value in DeepSpeed's own configuration object."""
    found: Any = config.zero_config
    for part in parameter.name.split(".")[1:]:
        if found is None:  # the section is off
            return None
        fields = type(found).model_fields if isinstance(found, BaseModel) else {}
        name = next((name for name, field in fields.items() if field.alias == part), part)
        found = found[part] if isinstance(found, dict) else getattr(found, name)
    if isinstance(found, Enum):
        return found.value
    return str(found) if isinstance(found, Path) else found


@pytest.mark.shows("zero_optimization")
@pytest.mark.parametrize("parameter", KEYS, ids=lambda p: p.name.removeprefix("zero_optimization."))
def test_every_key_is_delivered(parameter: Parameter, monkeypatch: pytest.MonkeyPatch) -> None:
    value = OTHERS.get(parameter.name, other_value(parameter))
    assert value is not None
    beside = "" if parameter.attribute == "nvme_path" else _beside(parameter.name)
    written = read_by_deepspeed(configured(json.dumps(nested({parameter.name: value})), beside), monkeypatch)
    # Of ZenFlow's two settings of the selection, neither is allowed alone.
    without = read_by_deepspeed(configured("" if "zenflow.select" in parameter.name else beside), monkeypatch)
    assert worked_with(written, parameter) == value
    assert worked_with(without, parameter) != value


def _beside(name: str) -> str:
    return next((text for start, text in COMPANIONS.items() if name.startswith(start)), "")


def test_there_are_keys_of_every_section() -> None:
    sections = {parameter.name.rpartition(".")[0] for parameter in KEYS}
    assert {"zero_optimization", "zero_optimization.offload_param", "zero_optimization.offload_optimizer"} <= sections
    assert len(KEYS) > 60


@pytest.mark.parametrize("key", ["stage", "reduce_scatter", "contiguous_gradients", "allgather_bucket_size"])
def test_the_spelling_at_top_level_is_the_same_key(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = REGISTRY.parameters[f"zero_optimization.{key}"]
    config = configured(json.dumps({f"zero_{key}": other_value(parameter)}))
    assert worked_with(read_by_deepspeed(config, monkeypatch), parameter) == other_value(parameter)
