"""The history of GPT-NeoX's names and defaults, which tests/support/data_tables.py makes from its commits."""

from __future__ import annotations

from datetime import date

import pytest

from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.registry.history import NEWEST, SEED, changes, default_at, introduced, removed, tables
from tests.support.reference import read


def test_every_name_that_was_ever_legal_is_registered() -> None:
    """Also the names that GPT-NeoX dropped: a file of their time is read as it was meant."""
    added = {name for event in read("neox_key_history.json") for name in event["added"]}
    rows = [row["name"] for row in read("neox_lost_keys.tsv") if row["where"] == "main-config"]
    assert {"moe_type", "soft_prompt_tuning.n_tokens"} < set(rows)
    assert [name for name in (*added, *rows) if not REGISTRY.find(name) and name not in REGISTRY.sections] == []


def test_a_change_of_the_code_is_that_of_a_parameter_of_deepy() -> None:
    for row in read("neox_code_changes.tsv"):
        assert REGISTRY.parameters[row["parameter"]].ours


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
