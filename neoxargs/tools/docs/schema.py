"""docs/neoxargs.schema.json: a JSON Schema (draft-07) of the configuration file, for editors.

They complete names, show descriptions, and underline mistakes.

It accepts what the loader accepts: any mixture of `-` and `_`, choices in any case, `auto` in DeepSpeed's part. Only a
number or a truth value in quotes, which the loader reads, is a mistake here.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from neoxargs.registry import ABSENT, REGISTRY, Parameter
from neoxargs.registry.types import Bound

Schema = dict[str, Any]

#: A scalar where text is wanted is taken as it is written, numbers too.
_PLAIN: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": ["string", "number"]},
    type(None): {"type": "null"},
    list: {"type": "array"},
    dict: {"type": "object"},
}


def schema() -> Schema:
    """The schema of a whole file."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$comment": "Generated from neoxargs/registry by `python deepy.py docs`.",
        "title": "deepy configuration",
        "description": "One file for DeepSpeed's launcher, DeepSpeed, Megatron and GPT-NeoX.",
        **_section(""),
    }


def text() -> str:
    """The file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _section(path: str) -> Schema:
    """The keys of a section: parameters, sections inside it, and every other spelling of both."""
    present, retired = _keys(path)
    pointer = "#/properties/" + "".join(f"{part}/properties/" for part in path.split(".") if part)
    # draft-07 ignores what stands beside a $ref, hence allOf
    old = {key: {"allOf": [{"$ref": pointer + new}], **_deprecated(f"Write {new}.")} for key, new in retired.items()}
    spellings = {_with_hyphens(key): {"$ref": pointer + key} for key in [*present, *old] if "_" in key}
    found: Schema = {"type": ["object", "null"] if path else "object", "properties": present | old}
    if spellings:
        found["patternProperties"] = spellings
    return found | {"additionalProperties": False}


def _keys(path: str) -> tuple[dict[str, Schema], dict[str, str]]:
    """Of a section: its present keys, and its retired ones with the present key each stands for."""
    present = {key: _parameter(REGISTRY.parameters[full]) for key, full in _inside(REGISTRY.parameters, path)}
    retired = {
        key: new
        for key, full in _inside(REGISTRY.renamed, path)
        if (new := REGISTRY.renamed[full].attribute) in present
    }
    for key, full in _inside(REGISTRY.sections, path):
        group = REGISTRY.sections[full]
        if group and group.section != full:
            retired[key] = group.section.rpartition(".")[2]
        else:
            present[key] = {"description": inspect.getdoc(group), **_section(full)} if group else _section(full)
    return present, retired


def _inside(names: Iterable[str], path: str) -> list[tuple[str, str]]:
    """(key, full name) of those that lie directly in the section."""
    split = [(name.rpartition("."), name) for name in names]
    return [(key, name) for (section, _, key), name in split if section == path]


def _with_hyphens(key: str) -> str:
    """Every spelling but the one among `properties`, so that a mistake is told once."""
    return f"^(?=.*-){key.replace('_', '[-_]')}$"


def _parameter(parameter: Parameter) -> Schema:
    kind = _type(parameter.type)
    found = {"description": parameter.description, **(_or_auto(kind) if "DSC" in parameter.origins else kind)}
    if parameter.default is not ABSENT and parameter.default is not None:
        found["default"] = parameter.default
    return found | _deprecated(parameter.description) if parameter.replaced_by else found


def _deprecated(instead: str) -> Schema:
    """What a validator ignores and an editor shows; the message is the word of VS Code's YAML extension."""
    return {"description": instead, "deprecated": True, "deprecationMessage": instead}


def _type(wanted: Any) -> Schema:
    """The schema of a declared type."""
    build = _BUILD.get(get_origin(wanted))
    return build(*get_args(wanted)) if build else dict(_PLAIN.get(wanted, {}))


def _or_auto(found: Schema) -> Schema:
    """In DeepSpeed's part the word `auto` stands for any value."""
    alternatives = found["anyOf"] if set(found) == {"anyOf"} else [found]
    return {"anyOf": [*alternatives, {"const": "auto"}]}


def _bounded(base: Any, *bounds: Bound) -> Schema:
    return _type(base) | _bounds(bounds)


def _union(*members: Any) -> Schema:
    return {"anyOf": [_type(member) for member in members]}


def _list(element: Any = Any) -> Schema:
    return {"type": "array", "items": _type(element)}


def _mapping(_: Any, value: Any) -> Schema:
    return {"type": "object", "additionalProperties": _type(value)}


def _bounds(bounds: Iterable[Bound]) -> Schema:
    named = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum"}
    limits = {key: getattr(bound, side) for bound in bounds for side, key in named.items()}
    return {key: limit for key, limit in limits.items() if limit is not None}


def _choices(*choices: Any) -> Schema:
    """The choices as they are listed, for completion, or in any other case."""
    words = [choice for choice in choices if isinstance(choice, str) and choice.upper() != choice.lower()]
    if not words:
        return {"enum": list(choices)}
    pattern = "|".join("".join(_either_case(letter) for letter in word) for word in words)
    return {"anyOf": [{"enum": list(choices)}, {"type": "string", "pattern": f"^({pattern})$"}]}


def _either_case(letter: str) -> str:
    return f"[{letter.upper()}{letter.lower()}]" if letter.upper() != letter.lower() else re.escape(letter)


_BUILD: dict[Any, Callable[..., Schema]] = {
    Annotated: _bounded,
    Literal: _choices,
    Union: _union,
    types.UnionType: _union,
    list: _list,
    dict: _mapping,
}
