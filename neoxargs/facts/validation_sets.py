"""The sets of `validation`: validation data by name, each with a loss of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from neoxargs.base.problems import did_you_mean
from neoxargs.facts.data import path_list
from neoxargs.facts.mistakes import is_finite, refuse

KEYS = ("data_paths", "data_weights", "label_data_paths", "weight")
#: The split that sets belong to. The data of a set is the part `validation/NAME`.
SPLIT = "validation"


class ValidationSet(NamedTuple):
    """Validation data with a name."""

    name: str
    paths: Sequence[str]
    """Prefixes of its token files."""
    weights: Sequence[float]
    """How often each is drawn from, relative to the others."""
    labels: Sequence[str]
    """Prefixes of their label files; empty if there are none."""
    weight: float
    """Of its loss in the mean over all sets."""

    @property
    def part(self) -> str:
        return f"{SPLIT}/{self.name}"


def validation_sets(value: Mapping[str, Any] | None) -> list[ValidationSet]:
    """Return the sets of `validation`. Raises Mistakes with everything that is wrong."""
    named = [(str(name), given if isinstance(given, dict) else {"data_paths": given})
             for name, given in (value or {}).items()]  # fmt: skip
    refuse((name, *problem) for name, given in named for problem in _wrong(name, given))
    found = []
    for name, given in named:
        paths, labels = path_list(given["data_paths"]), path_list(given.get("label_data_paths"))
        weights = given.get("data_weights") or [1.0] * len(paths)
        found.append(ValidationSet(name, paths, weights, labels, given.get("weight", 1.0)))
    return found


def mean_loss(sets: Sequence[ValidationSet], losses: Mapping[str, float]) -> float:
    """Return the mean of the losses of these sets, by name, with the weights of the sets."""
    weights = {each.name: each.weight for each in sets if each.name in losses}
    return sum(weight * losses[name] for name, weight in weights.items()) / sum(weights.values())


def _wrong(name: str, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a set, and what to write instead."""
    if not re.fullmatch(r"[\w.-]+", name):
        yield "this is no name of a set", "use letters, digits, '.', '_' and '-'"
    unknown = {key: did_you_mean(str(key), KEYS) for key in given if key not in KEYS}
    for key, meant in unknown.items():
        yield f"unknown key: {key}", meant or f"a set has the keys {', '.join(KEYS)}"
    if not _are_paths(given.get("data_paths")):
        if not any("data_paths" in meant for meant in unknown.values()):
            yield "data_paths names no token files", "write data_paths: PREFIX, or a list of prefixes"
        return
    count = len(path_list(given["data_paths"]))
    for key, valid, what in (
        ("data_weights", _are_weights(given.get("data_weights")), "numbers of at least 0, not all 0"),
        ("label_data_paths", _are_paths(given.get("label_data_paths")), "prefixes of label files"),
    ):
        if given.get(key) is None:
            continue
        if not valid:
            yield f"{key} are not {what}", f"write {key} as a list of {what}"
        elif len(path_list(given[key])) != count:
            yield f"{key} and data_paths have different lengths", f"write one of {key} for each of data_paths"
    weight = given.get("weight", 1.0)
    if not is_finite(weight) or weight <= 0:
        yield f"weight ({weight!r}) must be a number above 0", "write the share of its loss in the mean over all sets"


def _are_paths(value: Any) -> bool:
    listed = [value] if isinstance(value, str) else value
    return isinstance(listed, list) and bool(path_list(value)) and all(isinstance(each, str) for each in listed)


def _are_weights(value: Any) -> bool:
    return isinstance(value, list) and all(is_finite(each) and each >= 0 for each in value) and any(value)
