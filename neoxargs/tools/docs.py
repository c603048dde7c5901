"""docs/parameters.md and docs/neoxargs.schema.json, written from the registry.

`deepy docs` writes them, `deepy docs --check` and a test tell when they are not what the registry says.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neoxargs.registry import ABSENT, REGISTRY, SUBJECTS, Group, Parameter
from neoxargs.registry.history import changes, removed
from neoxargs.resolve.check import expectation
from neoxargs.tools.schema import schema

DOCS = Path(__file__).parents[2] / "docs"

HEAD = """\
<!-- Generated from neoxargs/registry by `python deepy.py docs`. Change the registry, not this file. -->

# Parameters

Everything that may stand in a configuration file: {count} parameters, each in one place. `-` and `_` are the same in
every name.

- **Origin** is where a name comes from: `DSL` a flag of the DeepSpeed launcher, `DSC` a key of DeepSpeed's JSON,
  `Meg` an argument of Megatron-LM, `NeoX` an addition of GPT-NeoX or of this program.
- **Default value** is what holds when nobody writes anything; with a date, since when GPT-NeoX has another default
  (`dialect` chooses the day). *Derived* values are computed from others, **required** ones must be written. Where the
  receiver assumes something else when it is not told, that is named too.
- **Effect** is what changes with the value in a run of `train.py`: which processes the `launcher` starts; the `layout`
  of the model on them; what DeepSpeed's `engine` does by itself; the `model`, `optimizer`, learning rate `schedule`,
  `data`, `memory` in use, `checkpoint` files, `log` and reports, the course of the `run`, `generation` of text;
  `config`: only other parameters, which follow from it. `not built`: `train.py` refuses any value but the default.
  `none`: nothing, and why; `check` warns of a value other than the default.
- **Destination** is who gets the value. `train.py` receives it on every rank; a Megatron-LM flag is what `--emit
  megatron` writes. Without a destination, the value is used by deepy alone.

| Origin | Parameter name | Default value | Description | Type | Effect | Destination |
|---|---|---|---|---|---|---|
"""

Row = tuple[str, str, str, str, str, str, str]


def write_docs(check: bool = False, directory: Path = DOCS) -> list[str]:
    """Bring the generated files up to date; with `check` only look. Returns the names of those that were stale."""
    stale = []
    for name, text in {"parameters.md": parameters(), "neoxargs.schema.json": _json(schema())}.items():
        path = directory / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            directory.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return stale


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def parameters() -> str:
    """The page: one table, subject by subject, each section before its keys."""
    rows = (row for group in _by_subject() for row in _rows(group))
    return HEAD.format(count=len(REGISTRY.parameters)) + "".join(f"| {' | '.join(map(_cell, row))} |\n" for row in rows)


def _by_subject() -> Iterator[type[Group]]:
    for module in SUBJECTS:
        yield from (group for group in REGISTRY.groups if group.__module__ == module.__name__)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _rows(group: type[Group]) -> Iterator[Row]:
    if group.section:
        where = f"DeepSpeed JSON `{group.section}`" if group.origin == "DSC" else "train.py"
        yield (
            group.origin,
            f"`{group.section}`",
            "",
            f"{_summary(group)} A section; its keys follow.",
            "section",
            "",
            where,
        )
    if group.renamed_from:
        yield group.origin, f"`{group.renamed_from}`", "", _now(group.renamed_from, group.section), "section", "", ""
    for parameter in group.parameters.values():
        origin = ", ".join(parameter.origins)
        kind = expectation(parameter.type)
        default, effect, destination = default_words(parameter), effect_words(parameter), destination_words(parameter)
        yield origin, f"`{parameter.name}`", default, parameter.description, kind, effect, destination
        prefix = parameter.name.removesuffix(parameter.attribute)
        for old in parameter.renamed_from:
            yield origin, f"`{prefix}{old}`", "", _now(old, parameter.name), kind, "", ""


def _summary(group: type[Group]) -> str:
    return (inspect.getdoc(group) or "").partition("\n\n")[0]


def _now(old: str, new: str) -> str:
    """What to write instead of an old or foreign spelling."""
    day = removed(old)
    return f"Retired in {day:%B %Y}: write `{new}`." if day else f"Another spelling of `{new}`."


def default_words(parameter: Parameter) -> str:
    """Ours, then since when GPT-NeoX's differs, then what the receiver assumes."""
    own = "**required**" if parameter.required else "*derived*" if parameter.derived else _shown(parameter.default)
    later = [f"{_shown(value)} from {day}" for day, value in changes(parameter.name)]
    return ", ".join(filter(None, [own, *later, _receiver_default(parameter)]))


def _receiver_default(parameter: Parameter) -> str:
    theirs = parameter.receiver_default
    if theirs is ABSENT or theirs is None or theirs == parameter.default:
        return ""
    receiver = {"DSC": "DeepSpeed", "DSL": "the launcher"}.get(parameter.origins[-1], "Megatron-LM")
    return f"{receiver}'s own {_shown(theirs)}"


def _shown(value: Any) -> str:
    """A default as one would write it in YAML."""
    if value is None:
        return "none"
    plain = isinstance(value, str) and value and value.isprintable()
    return f"`{value if plain else json.dumps(value)}`"


def effect_words(parameter: Parameter) -> str:
    """What changes with it; of nothing, why."""
    return f"none: {parameter.because}" if parameter.because else parameter.effect


def destination_words(parameter: Parameter) -> str:
    if parameter.becomes:
        return ""
    flag = f" `--{parameter.name}`" if "DSL" in parameter.origins else ""
    places = {"runner": f"launcher{flag}", "deepspeed": f"DeepSpeed JSON `{parameter.name}`"}
    found = [places.get(to, "train.py") for to in parameter.to]
    if parameter.megatron:
        when = " when false" if parameter.megatron.startswith("!") else ""
        found.append(f"Megatron-LM `--{parameter.megatron.removeprefix('!')}`{when}")
    return ", ".join(found)
