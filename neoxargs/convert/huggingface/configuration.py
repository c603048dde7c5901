"""Translate a Hugging Face config.json into this package's parameters; report every key that has no equivalent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from neoxargs.base.problems import Place, Problem, Problems, listed
from neoxargs.convert.huggingface import FAMILIES
from neoxargs.convert.huggingface.family import Family, Setting, Values
from neoxargs.resolve.yaml.nodes import Mapping, Node
from neoxargs.resolve.yaml.read import read_files

#: Key in transformers 5 -> its name in transformers 4.
OLD_KEYS = {"rope_parameters": "rope_scaling", "rope_type": "type"}


#: Parameters that must be positive integers.
REQUIRED_COUNTS = ("hidden_size", "num_layers", "num_attention_heads", "max_position_embeddings")
#: Parameters that must be positive integers if they are set, and are derived otherwise.
OPTIONAL_COUNTS = ("num_kv_heads", "intermediate_size", "mamba_inner_size", "head_dim")


class ImportedModel(NamedTuple):
    """A Hugging Face model, described by this package's parameters."""

    family: Family
    values: dict[str, Any]
    """Parameter -> value."""
    vocabulary: int
    """Rows of the embedding (`vocab_size`)."""


class _Entry(NamedTuple):
    """A value of config.json and its position in the file."""

    value: Any
    place: Place | None = None


def read(folder: Path) -> ImportedModel:
    """Read config.json; raise Problems with every key that has no equivalent, each with its position."""
    tree = read_files([folder / "config.json"])[0].mapping()
    family = _family(tree)
    values, problems = dict(family.constants), list(_unsupported(tree, family))
    for row in family.settings:
        entry = _first_entry(tree, row.key, *row.old_keys) or _Entry(row.default)
        unset = entry.value is None and row.ours[0] in OPTIONAL_COUNTS
        if row.ours[0] in (*REQUIRED_COUNTS, *OPTIONAL_COUNTS) and not (unset or _is_count(entry.value)):
            what = f"{row.key} ({json.dumps(entry.value)}) must be a positive integer"
            problems.append(Problem(what, entry.place, id="huggingface-not-a-count"))
            continue
        ours = _imported_values(row, entry.value)
        if ours is None:
            problems.append(_no_equivalent(row.key, entry))
            continue
        for name, value in ours.items():
            # Several keys may set one parameter (GPT-2 has two rates of dropout for ours), but only to the same value.
            if values.setdefault(name, value) != value:
                what = (
                    f"{row.key} ({json.dumps(entry.value)}) contradicts another key of this file, "
                    f"which sets {name} to {values[name]}"
                )
                problems.append(Problem(what, entry.place, id="huggingface-keys-contradict", about=(name,)))
    problems += _of_several_keys(tree, family, values)
    vocabulary = _first_entry(tree, "vocab_size") or _Entry(None, tree.place)
    if not _is_count(vocabulary.value):
        what = f"vocab_size ({json.dumps(vocabulary.value)}) must be a positive integer"
        problems.append(Problem(what, vocabulary.place, id="huggingface-not-a-count"))
    # Only in families that cannot have other widths, and so have no row for it.
    if not any("head_dim" in row.ours for row in family.settings):
        problems += _head_width(tree, values)
    if problems:
        raise Problems(problems)
    # Left out where it follows from the other values, as in a file that a user would write.
    if values.get("head_dim") == _natural_width(values):
        del values["head_dim"]
    return ImportedModel(family, values, vocabulary.value)


def _of_several_keys(tree: Mapping, family: Family, values: dict[str, Any]) -> Iterator[Problem]:
    """Add the parameters that follow from several keys together; yield a problem if there are none."""
    try:
        values.update(family.from_keys(tree.to_python()))
    except (KeyError, TypeError, ValueError) as error:
        what = f"{tree.place.file}: {error} has no equivalent in deepy's model"
        yield Problem(what, tree.place, id="huggingface-not-expressible")


def _imported_values(row: Setting, value: Any) -> Values | None:
    try:
        return row.to_ours(value)
    except (TypeError, ValueError):  # a value of the wrong type, such as text instead of a number
        return None


def _is_count(value: Any) -> bool:
    # Not isinstance: True is an int as well.
    return type(value) is int and value > 0


def _family(tree: Mapping) -> Family:
    named, kind = _first_entry(tree, "architectures"), _first_entry(tree, "model_type")
    architecture = named.value[0] if named and named.value and isinstance(named.value, list) else None
    for family in FAMILIES.values():
        if architecture == family.architecture or (architecture is None and kind and kind.value == family.model_type):
            return family
    entry = named or kind or _Entry(None, tree.place)
    what = f"architectures ({json.dumps(entry.value)}) is not supported"
    hint = f"import a model of one of these architectures: {', '.join(FAMILIES)}"
    raise Problems(Problem(what, entry.place, hint, id="huggingface-unknown-architecture"))


def _unsupported(tree: Mapping, family: Family) -> Iterator[Problem]:
    for row in family.fixed:
        entry = _first_entry(tree, row.key)
        if entry and entry.value not in (None, *row.values):
            yield _no_equivalent(row.key, entry, row.values)


def _no_equivalent(key: str, entry: _Entry, values: Iterable[Any] = ()) -> Problem:
    supported = [json.dumps(value) for value in values if value is not None]
    what = f"{key} ({json.dumps(entry.value)}) has no equivalent in deepy's model"
    hint = f"import a model with {key} {listed(supported)}" if supported else ""
    return Problem(what, entry.place, hint, id="huggingface-not-expressible")


def _head_width(tree: Mapping, values: dict[str, Any]) -> Iterator[Problem]:
    width = _natural_width(values)
    entry = _first_entry(tree, "head_dim")
    if entry and entry.value not in (None, width):
        what = f"head_dim ({entry.value}) must equal hidden_size / num_attention_heads ({width})"
        yield Problem(what, entry.place, id="huggingface-head-width")


def _natural_width(values: dict[str, Any]) -> int:
    return int(values.get("hidden_size", 0) // values.get("num_attention_heads", 1))


def _first_entry(tree: Mapping, *keys: str) -> _Entry | None:
    """Return the entry of the first of these keys that exists. A dot separates a section from its key."""
    for key in keys:
        entry = _entry_at(tree, key.split("."))
        if entry:
            return entry
    return None


def _entry_at(tree: Node, path: list[str]) -> _Entry | None:
    if not isinstance(tree, Mapping):
        return None
    for name in filter(None, (path[0], OLD_KEYS.get(path[0]))):
        for entry in tree.entries:
            if entry.key == name:
                if path[1:]:
                    nested = _entry_at(entry.value, path[1:])
                    if nested:
                        return nested
                else:
                    return _Entry(entry.value.to_python(), entry.place)
    return None
