"""The data files of neoxargs that hold facts about other programs: `python -m tests.support.data_tables` writes them.

PATH.json is generated from two sources. The facts are names, types and defaults that the installed program itself
states. PATH.yml is written by hand and holds what the program does not state: our descriptions, what train.py does with
a key, and the types and defaults that are missing or too wide. The generator refuses a PATH.yml that repeats a fact,
that lacks a key of the program, or that has a key which the program does not know.

In PATH.yml, a section has, besides the options of a `Group` (`no_effect_reason`, `always_sent`, `aliases`):
    about: its description
    keys: key -> description, in the order of the tables
    types: type -> the keys that have it
    defaults, refused, instead: key -> the argument of `param`; a key that is refused has the effect `not built`
    no_effect_reasons: reason -> the keys without an effect for another reason than the section's
    not_sent: the keys that are never sent
    left_out: why a file cannot have a key -> the keys of the program that are not declared
    elsewhere: who reads a key -> the keys that the program does not state
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import deepspeed
import yaml

from neoxargs.base.record import Record
from tests.support import deepspeed_spy
from tests.support.paths import ROOT

Facts = dict[str, dict[str, dict[str, Any]]]
"""Section -> key -> `type`, `default` and `aliases`, as far as the program states them. `optional`: a name that the
program uses and that need not be a key."""


class Table(Record):
    """A data file and the overlay beside it."""

    path: str
    """Of both, relative to the repository and without suffix."""
    version: str
    facts: Callable[[], Facts]


TABLES = (Table("neoxargs/registry/deepspeed_keys", f"deepspeed {deepspeed.__version__}", deepspeed_spy.facts),)


def generated(table: Table) -> str:
    """Return the data file. Raises ValueError if the overlay does not fit the facts."""
    overlay = yaml.safe_load((ROOT / f"{table.path}.yml").read_text(encoding="utf-8"))
    overlay.pop("texts", None)
    return as_text(table.version, merged(table.facts(), overlay))


def merged(facts: Facts, overlay: dict[str, Any]) -> dict[str, Any]:
    """Return section -> options and keys. Raises ValueError with all faults of the overlay."""
    faults = [fault for section, ours in overlay.items() for fault in _faults(section, ours, facts.get(section, {}))]
    if faults:
        raise ValueError("\n".join(faults))
    return {section: _section(ours, facts.get(section, {})) for section, ours in overlay.items()}


def _faults(section: str, ours: dict[str, Any], facts: dict[str, dict[str, Any]]) -> Iterator[str]:
    keys, left_out, elsewhere = ours["keys"], _inverted(ours, "left_out"), _inverted(ours, "elsewhere")
    types, reasons = _inverted(ours, "types"), _inverted(ours, "no_effect_reasons")
    for key in facts.keys() - keys.keys() - left_out.keys():
        if "optional" not in facts[key]:
            yield f"{section}.{key} is a key of the program: describe it, or add it to left_out"
    for key in keys.keys() - facts.keys() - elsewhere.keys():
        yield f"{section}.{key} is no key of the program: remove it, or add it to elsewhere"
    yield from (f"{section}.{key} is a key of the program, not of elsewhere" for key in elsewhere.keys() & facts.keys())
    yield from (f"{section}.{key} is left out, but no key of the program" for key in left_out.keys() - facts.keys())
    for stated, values in (("type", types), ("default", ours.get("defaults", {}))):
        for key, value in values.items():
            if stated in facts.get(key, {}) and facts[key][stated] == value:
                yield f"{section}.{key}: the program itself states the {stated} {value}"
    yield from (f"{section}.{key}: add its type to types" for key in keys if not _type(key, ours, facts.get(key, {})))
    named = {*types, *reasons, *elsewhere, *ours.get("not_sent", ())}
    named.update(key for name in ("defaults", "refused", "instead") for key in ours.get(name, ()))
    yield from (f"{section}.{key} has no description" for key in named - keys.keys())


def _inverted(ours: dict[str, Any], name: str) -> dict[str, str]:
    return {key: value for value, keys in ours.get(name, {}).items() for key in keys}


def _section(ours: dict[str, Any], facts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    options = {name: ours[name] for name in ("no_effect_reason", "always_sent", "aliases") if name in ours}
    keys = {key: _parameter(key, ours, facts.get(key, {})) for key in ours["keys"]}
    return {"about": ours["about"], "options": options, "keys": keys}


def _parameter(key: str, ours: dict[str, Any], fact: dict[str, Any]) -> dict[str, Any]:
    """Return the type, the description, and the arguments of `param`."""
    default = ours.get("defaults", {}).get(key, fact.get("default"))
    parameter = {"type": _type(key, ours, fact), "default": default, "text": ours["keys"][key]}
    if fact.get("default", default) != default:
        parameter["receiver_default"] = fact["default"]
    if "aliases" in fact:
        parameter["aliases"] = fact["aliases"]
    if key in ours.get("refused", {}):
        parameter["effect"] = "not built"
    parameter |= {name: ours[name][key] for name in ("refused", "instead") if key in ours.get(name, {})}
    if reason := _inverted(ours, "no_effect_reasons").get(key):
        parameter |= {"effect": "none", "no_effect_reason": reason}
    if key in ours.get("not_sent", ()):
        parameter["to"] = []
    return parameter


def _type(key: str, ours: dict[str, Any], fact: dict[str, Any]) -> str:
    """Return the type that the overlay or the program states or that the default shows, else an empty string."""
    shown = {bool: "bool", int: "int", float: "float", str: "str", dict: "dict[str, Any]"}
    default = ours.get("defaults", {}).get(key, fact.get("default"))
    return _inverted(ours, "types").get(key) or fact.get("type") or shown.get(type(default), "")


def as_text(version: str, sections: dict[str, Any]) -> str:
    """Return the data file: one line for each key."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    def block(section: dict[str, Any]) -> str:
        keys = ",\n".join(f"   {line(key)}: {line(row)}" for key, row in section["keys"].items())
        return (
            f'{{"about": {line(section["about"])},\n  "options": {line(section["options"])},\n  "keys": {{\n{keys}}}}}'
        )

    texts = ",\n".join(f" {line(name)}: {block(section)}" for name, section in sections.items())
    return f'{{"facts": {line(version)}, "sections": {{\n{texts}}}}}\n'


def main() -> None:
    """Write the data files."""
    for table in TABLES:
        (ROOT / f"{table.path}.json").write_text(generated(table), encoding="utf-8")


if __name__ == "__main__":
    main()
