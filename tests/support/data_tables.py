"""The data files of neoxargs that hold facts about other programs: `python -m tests.support.data_tables` writes them.

With `--check`, it only compares them. neox_history.json is generated from the commits of GPT-NeoX in tests/reference.
unsupported_flags.json is written by hand, apart from its layout; a flag that Megatron-LM's parser in tests/reference
has and neither it nor deepy knows is a fault, as is a pattern that matches no flag.

deepspeed_keys.json is generated from two sources. The facts are names, types and defaults that the installed program
itself states. deepspeed_keys.yml is written by hand and holds what the program does not state: our descriptions, what
train.py does with a key, and the types and defaults that are missing or too wide. The generator refuses an overlay that
repeats a fact, that lacks a key of the program, or that has a key which the program does not know.

In the overlay, a section has, besides the options of a `Group` (`effect`, by default `none`, `no_effect_reason`,
`always_sent`, `aliases`):
    about: its description
    attribute: the name of its class, if code reads it as an attribute of `Config`
    keys: key -> description, in the order of the tables
    types: type -> the keys that have it
    defaults, refused, instead: key -> the argument of `param`; a key of which all values are refused has the effect
        `not built`
    replaced_by: key -> value -> {parameter: value} of the current equivalent
    old_names: key -> the retired names of it that the program does not state
    effects: effect -> the keys with another one than the section
    no_effect_reasons: reason -> the keys without an effect for another reason than the section's
    not_sent: the keys that are never sent
    left_out: why a file cannot have a key -> the keys of the program that are not declared
    elsewhere: who reads a key -> the keys that the program does not state
"""

from __future__ import annotations

import argparse
import ast
import json
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import deepspeed
import yaml

from neoxargs.migrate.megatron.flags import is_read
from neoxargs.migrate.megatron.reading import OLD_NAMES
from neoxargs.migrate.megatron.unsupported_flags import reason, tables
from neoxargs.registry import REGISTRY, normal
from neoxargs.registry.history import SEED
from tests.support import deepspeed_spy
from tests.support.paths import REFERENCE, ROOT
from tests.support.reference import read

Facts = dict[str, dict[str, dict[str, Any]]]
"""Section -> key -> `type`, `default`, `aliases` and `used_by_types`, as far as the program states them. `optional`: a
name that the program uses and that need not be a key."""


#: A name that the first table of GPT-NeoX lacks although it was legal: a flag outside of it.
OLDER_THAN_IT_LOOKS = "deepspeed"
#: A change of a default that is left out: GPT-NeoX's parser had 100 before.
LEFT_OUT = "log_interval"


def deepspeed_keys() -> str:
    """Return the declarations of DeepSpeed's keys. Raises ValueError if the overlay does not fit the facts."""
    overlay = yaml.safe_load((ROOT / "neoxargs/registry/deepspeed_keys.yml").read_text(encoding="utf-8"))
    overlay.pop("texts", None)
    strict = {section: sorted(deepspeed_spy.accepted(model)) for section, model in deepspeed_spy.MODELS.items()}
    return as_text(f"deepspeed {deepspeed.__version__}", merged(deepspeed_spy.facts(), overlay), strict)


def neox_history() -> str:
    """Return the dates on which GPT-NeoX introduced and removed names, and changed defaults."""
    came = dict.fromkeys((normal(row["name"]) for row in read("seed_parameters.tsv")), "")
    went: dict[str, str] = {}
    defaults: dict[str, dict[str, Any]] = defaultdict(dict)
    # It changed when a class took the place of the first table.
    defaults["deepspeed_activation_checkpointing"]["2021-04-30"] = True
    for event in read("neox_key_history.json"):
        day = event["date"]
        for name in event["added"]:
            came.setdefault(name, day if day > SEED.isoformat() else "")
            went.pop(name, None)
        for name in event["removed"]:
            came.setdefault(name, "")
            went[name] = day
        for name, before, after in event["default_changed"]:
            # The default with which a name was introduced is that before its first change.
            if came[name] and name not in defaults and ast.literal_eval(before) != REGISTRY.parameters[name].default:
                defaults[name][came[name]] = ast.literal_eval(before)
            defaults[name][day] = ast.literal_eval(after)
    for row in read("neox_code_changes.tsv"):
        defaults[row["parameter"]][row["date"]] = ast.literal_eval(row["value"])
    came[OLDER_THAN_IT_LOOKS] = ""
    del defaults[LEFT_OUT]
    rows = {name: [*changes.items()] for name, changes in defaults.items()}
    tables: dict[str, dict[str, Any]]
    tables = {"introduced": _by_date(came), "removed": _by_date(went), "defaults": rows}
    blocks = [_block(json.dumps(name), dict(sorted(table.items()))) for name, table in tables.items()]
    return f"{{{','.join(blocks)}}}\n".replace(',"', ',\n "')


def _by_date(dates: dict[str, str]) -> dict[str, list[str]]:
    return {day: sorted(name for name in dates if dates[name] == day) for day in set(dates.values()) - {""}}


def _block(name: str, rows: dict[str, Any]) -> str:
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items())
    return f"{name}: {{\n{lines}}}"


def unsupported_flags() -> str:
    """Return the file in its layout. Raises ValueError if it does not fit the flags of Megatron-LM and its forks."""
    options = [name[2:].replace("_", "-") for name in read("megatron_lm_options.json")]
    forks = (REFERENCE / "megatron_deepspeed_options.txt").read_text(encoding="utf-8").split()
    unknown = [name for name in (*options, *forks) if not is_read(OLD_NAMES.get(name, name)) and not reason(name)]
    faults = [f"--{name} is a flag of the program: read it, or give a reason" for name in unknown]
    for pattern in [pattern for row in tables()["megatron"] for pattern in row["flags"]]:
        if not any(fnmatchcase(name, pattern) for name in options):
            faults.append(f"{pattern} matches no flag of Megatron-LM")
    for pattern in [pattern for row in tables()["forks"] for pattern in row["flags"]]:
        if "*" not in pattern and is_read(OLD_NAMES.get(pattern, pattern)):
            faults.append(f"--{pattern} is read, so it needs no reason")
    rows = [row for name in ("older", "megatron", "forks") for row in tables()[name]]
    unused = {*tables()["in_common"], *tables()["harmless"]} - {row["reason"] for row in rows}
    faults += [f"no flag has the reason: {each}" for each in sorted(unused)]
    if faults:
        raise ValueError("\n".join(faults))
    lists = [
        f'"{name}": [\n' + ",\n".join(f"  {json.dumps(each)}" for each in tables()[name]) + "]"
        for name in ("in_common", "harmless")
    ]
    for name in ("older", "megatron", "forks"):
        shown = [
            f'  {{"reason": {json.dumps(row["reason"])}, "flags": [\n{_wrapped(row["flags"])}]}}'
            for row in tables()[name]
        ]
        lists.append(f'"{name}": [\n' + ",\n".join(shown) + "]")
    return "{" + ",\n ".join(lists) + "}\n"


def _wrapped(words: list[str]) -> str:
    lines = textwrap.wrap(json.dumps(words)[1:-1], 116, break_on_hyphens=False, break_long_words=False)
    return textwrap.indent("\n".join(lines), "    ")


class Table(NamedTuple):
    """A data file, relative to the repository, and the function that returns its text."""

    path: str
    generate: Callable[[], str]


TABLES = (
    Table("neoxargs/registry/deepspeed_keys.json", deepspeed_keys),
    Table("neoxargs/registry/neox_history.json", neox_history),
    Table("neoxargs/migrate/megatron/unsupported_flags.json", unsupported_flags),
)


def merged(facts: Facts, overlay: dict[str, Any]) -> dict[str, Any]:
    """Return section -> options and keys. Raises ValueError with all faults of the overlay."""
    faults = [fault for section, ours in overlay.items() for fault in _faults(section, ours, facts.get(section, {}))]
    if faults:
        raise ValueError("\n".join(faults))
    return {section: _section(ours, facts.get(section, {})) for section, ours in overlay.items()}


def _faults(section: str, ours: dict[str, Any], facts: dict[str, dict[str, Any]]) -> Iterator[str]:
    keys, left_out, elsewhere = ours["keys"], _inverted(ours, "left_out"), _inverted(ours, "elsewhere")
    types, reasons = _inverted(ours, "types"), _inverted(ours, "no_effect_reasons")
    old_names = {name for names in ours.get("old_names", {}).values() for name in names}
    for key in facts.keys() - keys.keys() - left_out.keys() - old_names:
        if "optional" not in facts[key]:
            yield f"{section}.{key} is a key of the program: describe it, or add it to left_out"
    for key in keys.keys() - facts.keys() - elsewhere.keys():
        yield f"{section}.{key} is no key of the program: remove it, or add it to elsewhere"
    yield from (f"{section}.{key} is a key of the program, not of elsewhere" for key in elsewhere.keys() & facts.keys())
    yield from (f"{section}.{key} is left out, but no key of the program" for key in left_out.keys() - facts.keys())
    for stated, values in (("type", types), ("default", ours.get("defaults", {}))):
        for key, value in values.items():
            # 0.0 for 0 states more than the program: a type.
            if stated in facts.get(key, {}) and repr(facts[key][stated]) == repr(value):
                yield f"{section}.{key}: the program itself states the {stated} {value}"
    yield from (f"{section}.{key}: add its type to types" for key in keys if not _type(key, ours, facts.get(key, {})))
    named = {*types, *reasons, *elsewhere, *_inverted(ours, "effects"), *ours.get("not_sent", ())}
    tables = ("defaults", "refused", "instead", "replaced_by", "old_names")
    named.update(key for name in tables for key in ours.get(name, ()))
    yield from (f"{section}.{key} has no description" for key in named - keys.keys())


def _inverted(ours: dict[str, Any], name: str) -> dict[str, str]:
    return {key: value for value, keys in ours.get(name, {}).items() for key in keys}


#: What of a section is passed to `Group`; `attribute` is the name of the class.
GROUP_OPTIONS = ("attribute", "effect", "no_effect_reason", "always_sent", "aliases")


def _section(ours: dict[str, Any], facts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    options = {name: ours[name] for name in GROUP_OPTIONS if name in ours}
    keys = {key: _parameter(key, ours, facts.get(key, {})) for key in ours["keys"]}
    return {"about": ours["about"], "options": options, "keys": keys}


def _parameter(key: str, ours: dict[str, Any], fact: dict[str, Any]) -> dict[str, Any]:
    """Return the type, the description, and the arguments of `param`."""
    default = ours.get("defaults", {}).get(key, fact.get("default"))
    parameter = {"type": _type(key, ours, fact), "default": default, "text": ours["keys"][key]}
    if fact.get("default", default) != default:
        parameter["receiver_default"] = fact["default"]
    parameter |= {name: fact[name] for name in ("aliases", "used_by_types") if name in fact}
    if old := ours.get("old_names", {}).get(key):
        parameter["aliases"] = [*([fact["aliases"]] if "aliases" in fact else ()), *old]
    if key in ours.get("replaced_by", {}):
        parameter["replaced_by"] = [*ours["replaced_by"][key].items()]  # JSON's objects have strings as keys
    if effect := _inverted(ours, "effects").get(key):
        parameter["effect"] = effect
    if isinstance(ours.get("refused", {}).get(key), str):
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


def as_text(version: str, sections: dict[str, Any], strict: dict[str, list[str]]) -> str:
    """Return the data file: one line for each key. strict: the keys of each section that refuses all others."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    def block(section: dict[str, Any]) -> str:
        keys = ",\n".join(f"   {line(key)}: {line(row)}" for key, row in section["keys"].items())
        return (
            f'{{"about": {line(section["about"])},\n  "options": {line(section["options"])},\n  "keys": {{\n{keys}}}}}'
        )

    texts = ",\n".join(f" {line(name)}: {block(section)}" for name, section in sections.items())
    rows = ",\n".join(f" {line(name)}: {line(keys)}" for name, keys in strict.items())
    return f'{{"facts": {line(version)}, "strict": {{\n{rows}}}, "sections": {{\n{texts}}}}}\n'


def main() -> None:
    """Write the data files, or with `--check`, compare them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    for path, generate in TABLES:
        file, text = ROOT / path, generate()
        if check and file.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{path} differs: run python -m tests.support.data_tables")
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
