"""Records which keys the installed DeepSpeed reads from its JSON, and which defaults it uses for missing ones."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable
from typing import Any

import deepspeed
from deepspeed.runtime.config import DeepSpeedConfig

#: The version whose keys and defaults the registry records.
TESTED = "0.19.6"

#: The only key that DeepSpeed requires.
REQUIRED = {"train_batch_size": 1}


def read(values: dict[str, Any]) -> DeepSpeedConfig:
    """Return DeepSpeed's configuration object for these keys."""
    logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
    return DeepSpeedConfig({**REQUIRED, **copy.deepcopy(values)} if not isinstance(values, Spy) else values)


def version_note() -> str:
    """Return a note for failing assertions if another version of DeepSpeed is installed than TESTED, else ''."""
    if deepspeed.__version__ == TESTED:
        return ""
    return f" (the registry records deepspeed {TESTED}, installed is {deepspeed.__version__}: update both)"


def nested(values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return {"a": {"b": 1}} for [("a.b", 1)]."""
    tree: dict[str, Any] = {}
    for name, value in values:
        *sections, leaf = name.split(".")
        below = tree
        for section in sections:
            below = below.setdefault(section, {})
        below[leaf] = value
    return tree


class Spy(dict[str, Any]):
    """A JSON object that records the dotted names of the keys that are read, and the defaults of `get`."""

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
        self.defaults.setdefault(self.path + key, default)  # the first read determines what DeepSpeed uses
        return super().get(key, default)

    def keys(self) -> Any:
        return self

    def __copy__(self) -> Spy:
        return self
