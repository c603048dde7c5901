"""A config.json as parameters of ours, with everything in it that no parameter can say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from neoxargs.problems import Place, Problem, Problems, listed
from neoxargs.resolve.yaml.nodes import Mapping, Node
from neoxargs.resolve.yaml.read import parse, read_files
from neoxargs.train.huggingface import FAMILIES
from neoxargs.train.huggingface.family import Family, Setting, Values

#: Where transformers 4 kept what is `rope_parameters` now.
BEFORE = {"rope_parameters": "rope_scaling", "rope_type": "type"}


#: Without which nothing else can be said of a model.
COUNTS = ("hidden_size", "num_layers", "num_attention_heads", "max_position_embeddings")
#: What follows from those where it is missing.
OPTIONAL = ("num_kv_heads", "intermediate_size")


class Read(NamedTuple):
    """A model of theirs, described as one of ours."""

    family: Family
    values: dict[str, Any]
    vocabulary: int


class _Found(NamedTuple):
    value: Any
    place: Place | None = None


def read(folder: Path) -> Read:
    """Raises Problems with all that cannot be expressed, each with its place."""
    tree = parse(read_files([folder / "config.json"])[0])
    family = _family(tree)
    values, problems = dict(family.always), list(_fixed(tree, family))
    for row in family.settings:
        found = _first(tree, row.key, *row.also) or _Found(row.default)
        optional = found.value is None and row.ours[0] in OPTIONAL
        if row.ours[0] in (*COUNTS, *OPTIONAL) and not (optional or _counts(found.value)):
            what = f"{row.key} ({json.dumps(found.value)}) must be a positive integer"
            problems.append(Problem(what, found.place, id="huggingface-not-a-count"))
            continue
        ours = _back(row, found.value)
        if ours is None:
            problems.append(_inexpressible(row.key, found))
            continue
        for name, value in ours.items():
            if values.setdefault(name, value) != value:
                what = (
                    f"{row.key} ({json.dumps(found.value)}) contradicts another key, which sets {name}: {values[name]}"
                )
                problems.append(Problem(what, found.place, id="huggingface-keys-contradict", about=(name,)))
    vocabulary = _first(tree, "vocab_size") or _Found(None, tree.place)
    if not _counts(vocabulary.value):
        what = f"vocab_size ({json.dumps(vocabulary.value)}) must be a positive integer"
        problems.append(Problem(what, vocabulary.place, id="huggingface-not-a-count"))
    problems += _head_width(tree, values)
    if problems:
        raise Problems(problems)
    return Read(family, values, vocabulary.value)


def _back(row: Setting, value: Any) -> Values | None:
    try:
        return row.back(value)
    except (TypeError, ValueError):  # text where a number belongs
        return None


def _counts(value: Any) -> bool:
    return type(value) is int and value > 0


def _family(tree: Mapping) -> Family:
    named, kind = _first(tree, "architectures"), _first(tree, "model_type")
    wanted = named.value[0] if named and named.value and isinstance(named.value, list) else None
    for family in FAMILIES.values():
        if wanted == family.architecture or (wanted is None and kind and kind.value == family.model_type):
            return family
    found = named or kind or _Found(None, tree.place)
    what = f"architectures ({json.dumps(found.value)}) is not supported"
    hint = f"import a model of one of these architectures: {', '.join(FAMILIES)}"
    raise Problems(Problem(what, found.place, hint, id="huggingface-unknown-architecture"))


def _fixed(tree: Mapping, family: Family) -> Iterator[Problem]:
    for row in family.fixed:
        found = _first(tree, row.key)
        if found and found.value not in (None, *row.values):
            yield _inexpressible(row.key, found, row.values)


def _inexpressible(key: str, found: _Found, values: Iterable[Any] = ()) -> Problem:
    can = [json.dumps(value) for value in values if value is not None]
    what = f"{key} ({json.dumps(found.value)}) has no equivalent in this trainer"
    hint = f"supported: {listed(can)}" if can else ""
    return Problem(what, found.place, hint, id="huggingface-not-expressible")


def _head_width(tree: Mapping, values: dict[str, Any]) -> Iterator[Problem]:
    width = values.get("hidden_size", 0) // values.get("num_attention_heads", 1)
    found = _first(tree, "head_dim")
    if found and found.value not in (None, width):
        what = f"head_dim ({found.value}) must be hidden_size / num_attention_heads ({width})"
        yield Problem(what, found.place, id="huggingface-head-width")


def _first(tree: Mapping, *keys: str) -> _Found | None:
    """The value of the first of these keys that is there; a dotted one lies in a section."""
    for key in keys:
        found = _inside(tree, key.split("."))
        if found:
            return found
    return None


def _inside(tree: Node, path: list[str]) -> _Found | None:
    if not isinstance(tree, Mapping):
        return None
    for name in filter(None, (path[0], BEFORE.get(path[0]))):
        for entry in tree.entries:
            if entry.key == name:
                if path[1:]:
                    found = _inside(entry.value, path[1:])
                    if found:
                        return found
                else:
                    return _Found(entry.value.to_python(), entry.place)
    return None
