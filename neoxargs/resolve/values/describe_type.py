"""Descriptions of types for messages and docs."""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from neoxargs.base.problems import listed

UNIONS = (Union, types.UnionType)
_NOTHING = type(None)


def describe_type(wanted: Any, many: bool = False) -> str:
    """Describe a type, as in `a whole number, at least 1`. many: as the elements of a list, in the plural.

    Where a union allows any number, whole numbers are not named as well.
    """
    origin, arguments = get_origin(wanted) or wanted, get_args(wanted)
    if origin is Annotated:
        bounds = " and ".join(map(str, arguments[1:]))
        base = describe_type(arguments[0], many)
        return f"{base} {'(each ' + bounds + ')'}" if many else f"{base}, {bounds}"
    if origin is Literal:
        words = dict.fromkeys(str(choice) for choice in arguments)
        # Of choices that differ only in case, the lower case form is named.
        words = {word: None for word in words if word == word.lower() or word.lower() not in words}
        return f"{'any of ' if many else 'one of ' if len(words) > 1 else ''}{', '.join(words)}"
    if origin in UNIONS:
        return _describe_union(arguments, many)
    if origin is list:
        element = describe_type(arguments[0], True) if arguments and arguments[0] is not Any else ""
        return ("lists" if many else "a list") + (f" of {element}" if element else "")
    return _WORDS[origin][many]


def _describe_union(members: tuple[Any, ...], many: bool) -> str:
    single_first = sorted(members, key=is_list)
    has_float = any(_base(member) is float for member in members)
    named = [m for m in single_first if m is not _NOTHING and not (has_float and _base(m) is int)]
    choices = [word for member in named for word in _choices(member)]
    if len(choices) > 2 and all(map(_choices, named)):
        return listed(choices, most=len(choices))
    words = [describe_type(member, many) for member in named]
    if len(words) > 2 or (len(words) == 2 and any("," in word for word in words)):
        return f"{', '.join(words[:-1])}, or {words[-1]}"
    return " or ".join(words)


def _choices(wanted: Any) -> list[str]:
    """Return the values of a type that has only a few, as they are written in YAML."""
    if wanted is bool:
        return ["true", "false"]
    return list(map(str, get_args(wanted))) if get_origin(wanted) is Literal else []


def _base(wanted: Any) -> Any:
    """Return the type without its bounds."""
    return get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted


def is_list(wanted: Any) -> bool:
    return (get_origin(wanted) or wanted) is list


_WORDS: dict[Any, tuple[str, str]] = {
    bool: ("true or false", "true or false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    dict: ("a mapping of keys to values", "mappings"),
    _NOTHING: ("null", "null"),
    Any: ("any value", "any values"),
    object: ("any value", "any values"),
}
