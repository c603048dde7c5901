"""Values that the files do not say, or not as they are: overridden from outside, or derived by a rule."""

from __future__ import annotations

import json
from collections.abc import Iterator

from neoxargs.registry import REGISTRY
from neoxargs.resolve.config import Config
from neoxargs.resolve.value import Source

#: What rules say that only carry a value from one name to another.
ONE_SETTING = ("are one setting", "are the two")


def overridden(config: Config, cut: bool) -> Iterator[str]:
    for name, value in config.values.items():
        if value.source.kind in ("set", "environment"):
            yield f"{name} {short(value.value, 40 if cut else None)}  ({origin(value.source)})"


def derived(config: Config, cut: bool) -> Iterator[str]:
    """What follows from written values; not what merely repeats one of them under another name, or is the default."""
    listed: set[tuple[str, str]] = set()
    for parameter, value in config.items():
        source = value.source
        default = value.value == parameter.default or _has_default(config, parameter.name)
        if source.kind != "derived" or default or any(words in source.text for words in ONE_SETTING):
            continue
        shown = short(value.value, 24 if cut else None)
        others = [name for name in source.inputs if name != parameter.name and name in REGISTRY.parameters]
        known = [config.get(name) for name in others if config.written(name) or _has_default(config, name)]
        repeats = parameter.name in source.inputs and value.value in known
        repeats = repeats or (source.text, shown) in listed
        if not repeats and any(config.written(name) for name in others):
            listed.add((source.text, shown))
            yield f"{parameter.name} {shown}: {source.text}"


def _has_default(config: Config, name: str) -> bool:
    """Is the value what it would have been anyway, in the year the files speak?"""
    then = config.dialect.defaults().get(name) if config.dialect else None
    default: object = then.value if then else REGISTRY.parameters[name].default
    return bool(config.get(name) == default)


def origin(source: Source) -> str:
    """The place, or what else said so."""
    return str(source.where) if source.where else source.text or source.kind


def short(value: object, limit: int | None) -> str:
    if isinstance(value, list) and len(value) > 2 and all(item == value[0] for item in value):
        return f"{len(value)} x {json.dumps(value[0])}"
    shown = value if isinstance(value, str) else json.dumps(value)
    return shown if limit is None or len(shown) <= limit else shown[: limit - 1] + "…"
