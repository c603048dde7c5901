"""The data files state what the installed programs state, and each fault of an overlay is named."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.migrate.megatron.unsupported_flags import tables
from tests.support.data_tables import TABLES, Table, merged, unsupported_flags
from tests.support.deepspeed_spy import version_note
from tests.support.paths import ROOT

FACTS: dict[str, dict[str, dict[str, Any]]] = {
    "tank": {
        "size": {"type": "int", "default": 4},
        "unit": {"default": "litre"},
        "lid": {},
        "level": {"default": 0.5, "optional": True},
    }
}
KEYS = {"size": "Size.", "unit": "Unit.", "lid": "Lid."}
TYPES = {"bool | None": ["lid"]}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.path)
def test_a_data_file_is_up_to_date(table: Table) -> None:
    text = (ROOT / table.path).read_text(encoding="utf-8")
    assert text == table.generate(), f"run python -m tests.support.data_tables{version_note()}"


@pytest.mark.parametrize(
    ("table", "row", "words"),
    [
        ("older", {"reason": "", "flags": ["rl-*"]}, "--rl-profile is a flag of the program"),
        ("megatron", {"reason": "it is old", "flags": ["rl-*", "rlx-*"]}, r"rlx-\* matches no flag"),
        ("forks", {"reason": "it is old", "flags": ["num-layers"]}, "--num-layers is read"),
        ("harmless", "it is green", "no flag has the reason: it is green"),
    ],
)
def test_a_reason_that_does_not_fit_the_flags_is_refused(
    table: str, row: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tables(), table, [row, *tables()[table]])
    with pytest.raises(ValueError, match=words):
        unsupported_flags()


def test_types_and_defaults_are_the_programs() -> None:
    tank = merged(FACTS, {"tank": {"about": "A tank.", "keys": KEYS, "types": TYPES, "defaults": {"size": 3}}})["tank"]
    assert tank["keys"] == {
        "size": {"type": "int", "default": 3, "receiver_default": 4, "text": "Size."},
        "unit": {"type": "str", "default": "litre", "text": "Unit."},
        "lid": {"type": "bool | None", "default": None, "text": "Lid."},
    }


def test_what_the_program_does_not_state_is_added() -> None:
    ours = {
        "about": "A tank.", "keys": KEYS, "types": TYPES, "attribute": "Tank", "effects": {"memory": ["size"]},
        "old_names": {"unit": ["measure"]}, "replaced_by": {"lid": {True: {"cover": 1}}}, "defaults": {"size": 4.0},
    }  # fmt: skip
    tank = merged({"tank": FACTS["tank"] | {"measure": {}}}, {"tank": ours})["tank"]
    assert tank["options"] == {"attribute": "Tank"}
    assert tank["keys"] == {
        "size": {"type": "int", "default": 4.0, "text": "Size.", "effect": "memory"},
        "unit": {"type": "str", "default": "litre", "text": "Unit.", "aliases": ["measure"]},
        "lid": {"type": "bool | None", "default": None, "text": "Lid.", "replaced_by": [(True, {"cover": 1})]},
    }


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"keys": {"size": "Size.", "lid": "Lid."}}, "tank.unit is a key of the program"),
        ({"keys": {**KEYS, "colour": "Colour."}}, "tank.colour is no key of the program"),
        ({"types": {**TYPES, "int": ["size"]}}, "tank.size: the program itself states the type int"),
        ({"defaults": {"unit": "litre"}}, "tank.unit: the program itself states the default litre"),
        ({"refused": {"colour": "it is lost"}}, "tank.colour has no description"),
        ({"elsewhere": {"a table": ["size"]}}, "tank.size is a key of the program, not of elsewhere"),
        ({"left_out": {"an object": ["colour"]}}, "tank.colour is left out, but no key of the program"),
        ({"effects": {"memory": ["colour"]}}, "tank.colour has no description"),
        ({"types": {}}, "tank.lid: add its type to types"),
    ],
)
def test_an_overlay_that_does_not_fit_is_refused(fault: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        merged(FACTS, {"tank": {"about": "A tank.", "keys": KEYS, "types": TYPES, **fault}})
