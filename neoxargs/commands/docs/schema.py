"""Generate docs/neoxargs.schema.json, a JSON Schema (draft-07) of the configuration file for editors.

It accepts what the loader accepts: any mixture of `-` and `_`, choices in any case, `auto` for DeepSpeed's keys. The
exception is a number or boolean in quotes, which the loader accepts and the schema does not.
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

#: The loader reads a number as text where a parameter is a string.
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
    """Return the schema of a configuration file."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$comment": "Generated from neoxargs/registry by `python deepy.py docs`.",
        "title": "deepy configuration",
        "description": "One configuration file for DeepSpeed's launcher, DeepSpeed, Megatron and GPT-NeoX.",
        **_section(""),
    }


def schema_text() -> str:
    """Return the content of docs/neoxargs.schema.json."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _section(path: str) -> Schema:
    """Return the schema of a section: its parameters, inner sections, and all spellings of both."""
    present, retired = _keys(path)
    pointer = "#/properties/" + "".join(f"{part}/properties/" for part in path.split(".") if part)
    # allOf, because draft-07 ignores other keywords beside a $ref
    old = {key: {"allOf": [{"$ref": pointer + new}], **_deprecated(f"Write {new}.")} for key, new in retired.items()}
    # A pattern does not match the spelling in `properties`, whose errors would be reported twice.
    patterns = {key: f"^(?=.*-){key.replace('_', '[-_]')}$" for key in [*present, *old] if "_" in key}
    spellings: Schema = {pattern: {"$ref": pointer + key} for key, pattern in patterns.items()}
    section: Schema = {"type": ["object", "null"] if path else "object", "properties": present | old}
    if not path:
        spellings["^x-"] = {}  # holds values for anchors
    if spellings:
        section["patternProperties"] = spellings
    return section | {"additionalProperties": False}


def _keys(path: str) -> tuple[dict[str, Schema], dict[str, str]]:
    """Return the current keys of a section with their schemas, and its retired keys with their current names."""
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
            present[key] = (_described(inspect.getdoc(group) or "") if group else {}) | _section(full)
    return present, retired


def _inside(names: Iterable[str], path: str) -> list[tuple[str, str]]:
    """Return (key, full name) for the names directly in the section."""
    split = [(name.rpartition("."), name) for name in names]
    return [(key, name) for (section, _, key), name in split if section == path]


def _parameter(parameter: Parameter) -> Schema:
    kind = _type(parameter.type)
    if "DSC" in parameter.origins:  # DeepSpeed's keys accept `auto` as well
        kind = {"anyOf": [*(kind["anyOf"] if set(kind) == {"anyOf"} else [kind]), {"const": "auto"}]}
    result = {**_described(parameter.description), **kind}
    if parameter.default is not ABSENT and parameter.default is not None:
        result["default"] = parameter.default
    return result | _deprecated(parameter.description) if parameter.replaced_by else result


def _described(text: str) -> Schema:
    """Return the description as plain text and, if it has Markdown, as such, in which editors show it."""
    plain = text.replace("`", "")
    return {"description": plain} if plain == text else {"description": plain, "markdownDescription": text}


def _deprecated(instead: str) -> Schema:
    # Editors show these, validators ignore them. `deprecationMessage` is a keyword of VS Code's YAML extension.
    plain = instead.replace("`", "")
    return {**_described(instead), "deprecated": True, "deprecationMessage": plain}


def _type(wanted: Any) -> Schema:
    """Return the schema of a declared type."""
    build = _BUILD.get(get_origin(wanted))
    return build(*get_args(wanted)) if build else dict(_PLAIN.get(wanted, {}))


def _union(*members: Any) -> Schema:
    return {"anyOf": [_type(member) for member in members]}


def _list(element: Any = Any) -> Schema:
    several = {"type": "array", "items": _type(element)}
    return {"anyOf": [_type(element), several]} if get_origin(element) is Literal else several


def _bounded(base: Any, *bounds: Bound) -> Schema:
    named = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
    limits = {key: getattr(bound, side) for bound in bounds for side, key in named.items()}
    return _type(base) | {key: limit for key, limit in limits.items() if limit is not None}


def _choices(*choices: Any) -> Schema:
    """Return a schema of choices: an enum for completion, and a pattern that accepts any case."""
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
    dict: lambda _, value: {"type": "object", "additionalProperties": _type(value)},
}
