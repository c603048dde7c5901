"""Generate docs/parameters.md: a table for each module of the registry, a row for each name."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from neoxargs.base.problems import listed
from neoxargs.registry import ABSENT, REGISTRY, SUBJECTS, Group, Parameter, plugins, receivers
from neoxargs.registry.history import NEWEST, SEED, changes, introduced, removed
from neoxargs.resolve.values.describe_type import describe_type
from neoxargs.targets.neox_compat import DEEPSPEED, is_known

HEAD = """\
<!-- Generated from neoxargs/registry by `python deepy.py docs`. Change the registry, not this file. -->

# Parameters

All {count} parameters of a configuration file. `-` and `_` are interchangeable in names. Each name links to its row.

The origin of a name, at the right end of its row: `DSL`, flag of DeepSpeed's launcher; `DSC`, key of DeepSpeed's JSON
configuration; `Meg`, argument of Megatron-LM; `NeoX`, added by GPT-NeoX; `deepy`, added by deepy.

<details><summary>How to read the tables</summary>

- **Origin**: where the name comes from, as above; a name with several origins has the same meaning in each.
- **Default**: the value if the key is not set. A date means that GPT-NeoX changed the default on that day; `dialect`
  selects the date whose defaults apply. *Derived* values are computed from other parameters; **required** ones must be
  set. If the receiver has a different default, that default is listed as well.
- **Effect**: what the value changes in a run of `train.py`: the processes that the `launcher` starts; the `layout` of
  the model on the ranks; the behaviour of DeepSpeed's `engine`; the `model`, `optimizer`, learning rate `schedule`,
  `data`, `memory` use, `checkpoint` files, `log` and reports, progress of the `run`, or text `generation`. `config`:
  only other parameters, which are derived from it. `not built`: `train.py` accepts only the default, for the reason
  given. `none`: nothing, for the reason given; `check` warns if the value is not the default. A reason after any other
  effect says why `train.py` refuses some values.
- **Sent to**: the programs that receive the value. `train.py` receives it on every rank; `--emit megatron` writes the
  flags of Megatron-LM. If the cell is empty, only deepy uses the value. Versions in brackets: which versions of
  DeepSpeed have the key, and since when it has another default there, where versions from {oldest} to {latest} differ.
- **In GPT-NeoX**: when GPT-NeoX had the name, between {seed} and {newest}; empty if it never had the name. deepy
  reads every name in every dialect.

</details>
"""

TABLE = """
## {title}

{text}| Origin | Name | Default | Description | Type | Effect | Sent to | In GPT-NeoX |
|---|---|---|---|---|---|---|---|
"""

#: The cells of one row, in the order of the columns.
TableRow = tuple[str, str, str, str, str, str, str, str]


def page() -> str:
    """Return the page: a table for each module, with each section before its keys."""
    versions = receivers.versions()
    head = HEAD.format(
        count=len(REGISTRY.parameters), seed=SEED, newest=NEWEST, oldest=versions[0], latest=versions[-1]
    )
    return head + "".join(_table(module) for module in (*SUBJECTS, *plugins.subjects()))


def _table(subject: ModuleType) -> str:
    """Return the table of a module. Its docstring is `heading: text below; text that is not shown`."""
    groups = (group for group in REGISTRY.groups if group.__module__ == subject.__name__)
    rows = (row for group in groups for row in _rows(group))
    title, _, text = _summary(subject).rstrip(".").partition(";")[0].partition(": ")
    head = TABLE.format(title=title, text=f"{text[:1].upper()}{text[1:]}.\n\n" if text else "")
    return head + "".join(f"| {' | '.join(map(_cell, row))} |\n" for row in rows)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _rows(group: type[Group]) -> Iterator[TableRow]:
    if group.section:
        destination = f"DeepSpeed JSON `{group.section}`" if group.origin == "DSC" else "train.py"
        description = f"{_summary(group)} A section; its keys follow."
        dates = neox_dates(group.section)
        added = all(parameter.ours for parameter in group.parameters.values())
        whose: str = "deepy" if added else group.origin
        yield whose, _name(group.section), "", description, "section", "", destination, dates
    for alias in group.aliases:
        yield _old_name_row(group.origin, alias, group.section, "section")
    for parameter in group.parameters.values():
        origin = "deepy" if parameter.ours else ", ".join(parameter.origins)
        kind = describe_type(parameter.type)
        yield (
            origin,
            _name(parameter.name),
            default_words(parameter),
            parameter.description,
            kind,
            effect_words(parameter),
            destination_words(parameter),
            neox_dates(parameter.name),
        )
        prefix = parameter.name.removesuffix(parameter.attribute)
        for old in parameter.aliases:
            yield _old_name_row(origin, prefix + old, parameter.name, kind)


def _old_name_row(origin: str, old: str, new: str, kind: str) -> TableRow:
    """Return the row of a retired name or another spelling, which refers to the current name."""
    day = removed(old)
    successor = f"Retired in {day:%B %Y}: use `{new}`." if day else f"Another name for `{new}`."
    return origin, _name(old), "", successor, kind, "", "", neox_dates(old)


def _name(name: str) -> str:
    """Return a name with an anchor and a link to it, in HTML because Markdown has no anchors."""
    return f'<a id="{name}" href="#{name}">`{name}`</a>'


def neox_dates(name: str) -> str:
    """Return when GPT-NeoX had a name, such as `since 2022-12-14`; empty if never.

    A key in a section has the dates of the section, because GPT-NeoX passes on all keys of its sections.
    """
    top = name.partition(".")[0]
    came, went = introduced(top), removed(top)
    if came or went:
        return " ".join(f"{word} {day}" for word, day in (("since", came), ("until", went)) if day)
    parameter = None if top in plugins.DECLARED else REGISTRY.parameters.get(top)
    return "always" if top in DEEPSPEED or (parameter and is_known(parameter)) else ""


def _summary(thing: type[Group] | ModuleType) -> str:
    return (inspect.getdoc(thing) or "").partition("\n\n")[0]


def default_words(parameter: Parameter, separator: str = ", ") -> str:
    """Return the default, GPT-NeoX's later defaults with their dates, and the receiver's default if it differs."""
    own = "**required**" if parameter.required else "*derived*" if parameter.derived else _default(parameter.default)
    later = [f"{_default(value)} from {day}" for day, value in changes(parameter.name)]
    theirs = parameter.receiver_default
    if theirs is not ABSENT and theirs is not None and theirs != parameter.default:
        receiver = {"DSC": "DeepSpeed", "DSL": "the launcher"}.get(parameter.origins[-1], "Megatron-LM")
        later.append(f"{receiver}'s default {_default(theirs)}")
    return separator.join([own, *later])


def _default(value: Any) -> str:
    """Return a default as YAML in backquotes."""
    if value is None:
        return "none"
    plain = isinstance(value, str) and value and value.isprintable()
    return f"`{value if plain else json.dumps(value)}`"


def effect_words(parameter: Parameter) -> str:
    """Return the effect of a parameter and, if it has none or train.py refuses values, the reason."""
    reasons = parameter.no_effect_reason or refusal_words(parameter)
    return f"{parameter.effect}: {reasons}" if reasons else parameter.effect


def refusal_words(parameter: Parameter) -> str:
    """Return why train.py refuses values of a parameter, such as "`gmlp` or `amlp`: ..."; empty if it refuses none."""
    if isinstance(parameter.refused, str):
        return parameter.refused
    values: dict[str, list[str]] = {}
    for value, why in parameter.refused.items():
        values.setdefault(why, []).append(f"`{value}`" if value else "any other value")
    return "; ".join(f"{listed(names)}: {why}" for why, names in values.items())


def receiver_versions(name: str) -> str:
    """Return which versions of DeepSpeed have a key and how its default changed, in brackets; empty without changes."""
    came, went = receivers.added_in(name), receivers.removed_in(name)
    last = receivers.before(went) if went else ""
    said = [f"{word} {version}" for word, version in (("since", came), ("until", last)) if version]
    changes = receivers.default_changes().get(name, [])[1:]
    said += [f"default {_default(value)} since {version}" for version, value in changes]
    return f" ({', '.join(said)})" if said else ""


def destination_words(parameter: Parameter) -> str:
    """Return the receivers of a value and its name there; empty if only deepy uses it."""
    if parameter.replaced_by:
        return ""
    flag = f" `--{parameter.name}`" if "DSL" in parameter.origins else ""
    versions = receiver_versions(parameter.name)
    names = {"runner": f"launcher{flag}", "deepspeed": f"DeepSpeed JSON `{parameter.name}`{versions}"}
    sent_to = [names.get(to, "train.py") for to in parameter.to]
    if parameter.megatron:
        when = " when false" if parameter.megatron.startswith("!") else ""
        sent_to.append(f"Megatron-LM `--{parameter.megatron.removeprefix('!')}`{when}")
    return ", ".join(sent_to)
