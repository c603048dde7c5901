"""The installed DeepSpeed as the tests ask it: which keys it reads, and what it assumes where they are missing."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable
from typing import Any

import deepspeed
from deepspeed.runtime.config import DeepSpeedConfig

#: The version that the registry's pins were taken from.
TESTED = "0.19.6"

#: A batch size is all that DeepSpeed insists on.
LEAST = {"train_batch_size": 1}


def read(values: dict[str, Any]) -> DeepSpeedConfig:
    """DeepSpeed's own reading of a JSON."""
    logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
    return DeepSpeedConfig({**LEAST, **copy.deepcopy(values)} if not isinstance(values, Spy) else values)


def installed() -> str:
    """Why pins may differ, where another version is installed than they were taken from."""
    if deepspeed.__version__ == TESTED:
        return ""
    return f" (pins are from deepspeed {TESTED}, installed is {deepspeed.__version__}: update both)"


def nested(values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}."""
    tree: dict[str, Any] = {}
    for name, value in values:
        *sections, leaf = name.split(".")
        below = tree
        for section in sections:
            below = below.setdefault(section, {})
        below[leaf] = value
    return tree


class Spy(dict[str, Any]):
    """A JSON object that notes which keys are asked for, and with which default: `defaults` by dotted name."""

    def __init__(self, values: dict[str, Any], path: str = "", notes: Spy | None = None) -> None:
        self.path = path
        self.asked: set[str] = notes.asked if notes is not None else set()
        self.defaults: dict[str, Any] = notes.defaults if notes is not None else {}
        below = {k: Spy(v, f"{path}{k}.", self) if isinstance(v, dict) else v for k, v in values.items()}
        super().__init__(below)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(self.path + key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(f"{self.path}{key}")
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(self.path + key)
        self.defaults.setdefault(self.path + key, default)  # asked again, the first answer has been used
        return super().get(key, default)

    def keys(self) -> Any:
        return self

    def __copy__(self) -> Spy:
        return self
