"""docs/parameters.md: a table for each subject of the registry, a row for each name."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from neoxargs.launch.targets.neox_compat import DEEPSPEED, is_known
from neoxargs.registry import ABSENT, REGISTRY, SUBJECTS, Group, Parameter, plugins
from neoxargs.registry.history import NEWEST, SEED, changes, introduced, removed
from neoxargs.resolve.values.describe_type import expectation

HEAD = """\
<!-- Generated from neoxargs/registry by `python deepy.py docs`. Change the registry, not this file. -->

# Parameters

Everything that may stand in a configuration file: {count} parameters, each in one place. `-` and `_` are the same in
every name, and each name is a link to its own row.

<details><summary>How to read the table</summary>

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
- **In GPT-NeoX** is when GPT-NeoX itself has had the name, from {seed} to {newest}; empty where it never had. deepy
  reads every name in every dialect.

</details>
"""

TABLE = """
## {title}

{more}| Origin | Parameter name | Default value | Description | Type | Effect | Destination | In GPT-NeoX |
|---|---|---|---|---|---|---|---|
"""

Row = tuple[str, str, str, str, str, str, str, str]


def page() -> str:
    """The page: a table for each subject, each section before its keys."""
    head = HEAD.format(count=len(REGISTRY.parameters), seed=SEED, newest=NEWEST)
    return head + "".join(_table(module) for module in (*SUBJECTS, *plugins.subjects()))


def _table(subject: ModuleType) -> str:
    """The sentence of its module is the heading, what follows a colon the line below; a semicolon ends it for users."""
    groups = (group for group in REGISTRY.groups if group.__module__ == subject.__name__)
    rows = (row for group in groups for row in _rows(group))
    title, _, more = _summary(subject).rstrip(".").partition(";")[0].partition(": ")
    head = TABLE.format(title=title, more=f"{more[:1].upper()}{more[1:]}.\n\n" if more else "")
    return head + "".join(f"| {' | '.join(map(_cell, row))} |\n" for row in rows)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _rows(group: type[Group]) -> Iterator[Row]:
    if group.section:
        where = f"DeepSpeed JSON `{group.section}`" if group.origin == "DSC" else "train.py"
        what = f"{_summary(group)} A section; its keys follow."
        yield group.origin, _name(group.section), "", what, "section", "", where, years(group.section)
    for alias in group.aliases:
        yield _old_name_row(group.origin, alias, group.section, "section")
    for parameter in group.parameters.values():
        origin = ", ".join(parameter.origins)
        kind = expectation(parameter.type)
        yield (
            origin,
            _name(parameter.name),
            default_words(parameter),
            parameter.description,
            kind,
            effect_words(parameter),
            destination_words(parameter),
            years(parameter.name),
        )
        prefix = parameter.name.removesuffix(parameter.attribute)
        for old in parameter.aliases:
            yield _old_name_row(origin, prefix + old, parameter.name, kind)


def _old_name_row(origin: str, old: str, new: str, kind: str) -> Row:
    """The row of an old or foreign spelling, which says what to write instead."""
    return origin, _name(old), "", _successor(old, new), kind, "", "", years(old)


def _name(name: str) -> str:
    """A name that can be linked to, also where the Markdown is read as it is."""
    return f'<a id="{name}" href="#{name}">`{name}`</a>'


def years(name: str) -> str:
    """When GPT-NeoX had a name; of a key, when it had the section, whose keys it passes on."""
    top = name.partition(".")[0]
    came, went = introduced(top), removed(top)
    if came or went:
        return " ".join(f"{word} {day}" for word, day in (("since", came), ("until", went)) if day)
    parameter = None if top in plugins.DECLARED else REGISTRY.parameters.get(top)
    return "always" if top in DEEPSPEED or (parameter and is_known(parameter)) else ""


def _summary(thing: type[Group] | ModuleType) -> str:
    return (inspect.getdoc(thing) or "").partition("\n\n")[0]


def _successor(old: str, new: str) -> str:
    day = removed(old)
    return f"Retired in {day:%B %Y}: write `{new}`." if day else f"Another spelling of `{new}`."


def default_words(parameter: Parameter) -> str:
    """Ours, then since when GPT-NeoX's differs, then what the receiver assumes."""
    own = "**required**" if parameter.required else "*derived*" if parameter.derived else _default(parameter.default)
    later = [f"{_default(value)} from {day}" for day, value in changes(parameter.name)]
    return ", ".join(filter(None, [own, *later, _receiver_default(parameter)]))


def _receiver_default(parameter: Parameter) -> str:
    theirs = parameter.receiver_default
    if theirs is ABSENT or theirs is None or theirs == parameter.default:
        return ""
    receiver = {"DSC": "DeepSpeed", "DSL": "the launcher"}.get(parameter.origins[-1], "Megatron-LM")
    return f"{receiver}'s own {_default(theirs)}"


def _default(value: Any) -> str:
    """A default as one would write it in YAML."""
    if value is None:
        return "none"
    plain = isinstance(value, str) and value and value.isprintable()
    return f"`{value if plain else json.dumps(value)}`"


def effect_words(parameter: Parameter) -> str:
    """What changes with it; of nothing, why."""
    return f"none: {parameter.no_effect_reason}" if parameter.no_effect_reason else parameter.effect


def destination_words(parameter: Parameter) -> str:
    """Who gets the value, and as what; empty where deepy alone uses it."""
    if parameter.replaced_by:
        return ""
    flag = f" `--{parameter.name}`" if "DSL" in parameter.origins else ""
    places = {"runner": f"launcher{flag}", "deepspeed": f"DeepSpeed JSON `{parameter.name}`"}
    receivers = [places.get(to, "train.py") for to in parameter.to]
    if parameter.megatron:
        when = " when false" if parameter.megatron.startswith("!") else ""
        receivers.append(f"Megatron-LM `--{parameter.megatron.removeprefix('!')}`{when}")
    return ", ".join(receivers)
