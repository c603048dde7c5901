"""The history equals that of GPT-NeoX's repository."""

from __future__ import annotations

import ast
from datetime import date, timedelta

import pytest

from neoxargs.registry import ABSENT, REGISTRY, normal
from neoxargs.registry.history import NEWEST, SEED, changes, default_at, introduced, removed, tables
from tests.support.reference import read

#: Names that the first table lacks although they were legal: flags outside of it.
OLDER_THAN_IT_LOOKS = {"deepspeed"}
#: A default change that is left out: GPT-NeoX's parser had 100 before.
LEFT_OUT = {"log_interval"}


@pytest.fixture(scope="module")
def life() -> dict[str, tuple[str | None, str | None]]:
    """Name -> the date it was introduced (None: present at SEED) and the date it was removed (None: never)."""
    present = {normal(row["name"]): (None, None) for row in read("seed_parameters.tsv")}
    found: dict[str, tuple[str | None, str | None]] = dict(present)
    for event in read("neox_key_history.json"):
        day = event["date"]
        for name in event["added"]:
            came = found[name][0] if name in found else None if day <= SEED.isoformat() else day
            found[name] = (came, None)
        for name in event["removed"]:
            found[name] = (found.get(name, (None, None))[0], day)
    for row in read("neox_head_parameters.tsv"):
        assert found[row["name"]][1] is None
    return found


def test_every_name_has_the_dates_of_the_repository(life: dict[str, tuple[str | None, str | None]]) -> None:
    for name, (came, went) in life.items():
        assert introduced(name) == (None if came is None or name in OLDER_THAN_IT_LOOKS else date.fromisoformat(came))
        assert removed(name) == (None if went is None else date.fromisoformat(went))
    assert {name for table in ("introduced", "removed") for names in tables()[table].values() for name in names} <= set(
        life
    )


def test_every_name_that_was_ever_legal_is_registered(life: dict[str, tuple[str | None, str | None]]) -> None:
    """Also the names that GPT-NeoX dropped: a file of their time is read as it was meant."""
    rows = [row["name"] for row in read("neox_lost_keys.tsv") if row["where"] == "main-config"]
    assert {"moe_type", "soft_prompt_tuning.n_tokens"} < set(rows)
    assert [name for name in (*life, *rows) if not REGISTRY.find(name) and name not in REGISTRY.sections] == []


def test_every_change_of_a_default_is_there() -> None:
    for event in read("neox_key_history.json"):
        for name, _, after in event["default_changed"]:
            if name not in LEFT_OUT:
                assert default_at(name, date.fromisoformat(event["date"])) == ast.literal_eval(after)


def test_every_change_of_the_code_that_a_parameter_stands_for_is_there() -> None:
    rows = read("neox_code_changes.tsv")
    assert rows
    for row in rows:
        parameter, day = REGISTRY.parameters[row["parameter"]], date.fromisoformat(row["date"])
        assert parameter.ours
        assert default_at(parameter.name, day - timedelta(1)) == parameter.default
        assert default_at(parameter.name, day) == ast.literal_eval(row["value"])


def test_only_changes_of_defaults_are_there() -> None:
    recorded = {
        (name, date.fromisoformat(event["date"]))
        for event in read("neox_key_history.json")
        for name, *_ in event["default_changed"]
    } | {(row["parameter"], date.fromisoformat(row["date"])) for row in read("neox_code_changes.tsv")}
    for name in tables()["defaults"]:
        for day, _ in changes(name):
            assert (name, day) in recorded or day in (introduced(name), date(2021, 4, 30))


def test_changed_names_are_parameters_and_days_are_in_order() -> None:
    for name in tables()["defaults"]:
        assert name in REGISTRY.parameters
        days = [day for day, _ in changes(name)]
        assert days == sorted(set(days))
        assert SEED < days[0] <= days[-1] <= NEWEST


def test_a_default_holds_from_its_day() -> None:
    assert default_at("attention-dropout", SEED) == 0.1
    assert default_at("attention_dropout", date(2023, 12, 25)) == 0.1
    assert default_at("attention_dropout", date(2023, 12, 26)) == 0.0
    assert default_at("pipe_partition_method", SEED) == "type:transformer|mlp"
    assert default_at("pipe_partition_method", date(2021, 4, 1)) == "type:transformer"


def test_at_the_seed_the_registry_holds() -> None:
    for name, parameter in REGISTRY.parameters.items():
        assert default_at(name, SEED) is parameter.default


def test_required_parameters_have_no_default() -> None:
    assert default_at("num_layers", NEWEST) is ABSENT


def test_a_retired_spelling_is_asked_for_itself() -> None:
    assert introduced("save-interval") is None
    assert removed("save_interval") == introduced("checkpoint_factor") == date(2022, 12, 14)


def test_an_unknown_name_has_no_default() -> None:
    with pytest.raises(KeyError, match="no_such_name"):
        default_at("no_such_name", NEWEST)
    assert introduced("no_such_name") is None
