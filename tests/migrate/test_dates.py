"""A migrated file resolves to the values that the old file has under its own date, for all dates and all keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from neoxargs.base.files import Text
from neoxargs.base.problems import Problems
from neoxargs.config.config import Config
from neoxargs.migrate.neox.migrate import migrate
from neoxargs.migrate.neox.rewrites import CAPACITY, rewrites
from neoxargs.registry import REGISTRY
from neoxargs.registry.history import NEWEST, default_at, removed, tables
from neoxargs.resolve import File, draft
from neoxargs.resolve.effects.unread import unread_by_run
from neoxargs.resolve.yaml.edit import yaml_value
from neoxargs.runs.lenient import resolved
from tests.support.reference import read
from tests.support.selection import mostly_slow
from tests.support.snapshots import pinned
from tests.support.valid_values import SIZES, values

#: Every day on which a name or a default changed, in our tables or in GPT-NeoX's history.
DAYS = sorted(
    {"2021-02-28", "2026-05-20", *tables()["introduced"], *tables()["removed"]}
    | {day for rows in tables()["defaults"].values() for day, _ in rows}
    | {event["date"][:10] for event in read("neox_key_history.json") if event["date"][:10] >= "2021-02-28"}
)
#: What makes the run read each parameter whose default has changed.
READERS = (
    "norm: rmsnorm\nrms_norm_epsilon: 1e-5\ncheckpoint_activations: true\nweight_by_num_documents: true\n"
    "moe_num_experts: 4\npipe_parallel_size: 2\nmodel_parallel_size: 2\nno_weight_tying: true\n"
    "train_data_paths: [a]\nvalid_data_paths: [b]\ntest_data_paths: [c]\n"
)
#: These only generate text, or name a file that another one replaces.
NOT_TRAINED = {name for name, p in REGISTRY.parameters.items() if p.effect in ("generation", "none")}


def migrated(text: str) -> tuple[Config, Config]:
    """Return the configurations of a file before and after its migration, which is checked to be stable."""
    old = [Text("my.yml", text)]
    new = migrate(old, "neox-2026").texts
    assert migrate(new, "neox-2026").texts == new
    assert draft([File(*text) for text in new]).dialect.date == NEWEST
    return resolved(draft([File(*text) for text in old]), 8)[0], resolved(draft([File(*text) for text in new]), 8)[0]


def changed(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """Return what the trainer would read otherwise."""
    unread = unread_by_run(before), unread_by_run(after)
    retired = rewrites().keys() - {"precision", *CAPACITY}
    return {
        name: (before.get(name), after.get(name))
        for name in REGISTRY.parameters.keys() - retired - NOT_TRAINED - {"dialect"}
        if before.get(name) != after.get(name) and not all(is_unread(name) for is_unread in unread)
    }


@pytest.mark.parametrize("day", mostly_slow(DAYS))
def test_every_default_of_a_day_is_kept(day: str) -> None:
    before, after = migrated(f"{SIZES}{READERS}dialect: {day}\n")
    for name in tables()["defaults"].keys() - {"clip_grad"}:
        if not draft([File("my.yml", SIZES + READERS)]).values.get(name) and not REGISTRY.parameters[name].derived:
            expected = default_at(name, draft([File("my.yml", f"dialect: {day}")]).dialect.date)
            if name not in ("rms_norm_epsilon_under_root", "text_gen_type"):  # derived from the day
                assert before.get(name) == expected, name
    assert changed(before, after) == {}


RENAMED = sorted({old for event in read("neox_key_history.json") for old in event["removed"]} & rewrites().keys())


@pytest.mark.parametrize("name", mostly_slow(RENAMED))
def test_a_removed_key_is_kept_renamed_or_refused(name: str) -> None:
    """Each file is of the last day on which GPT-NeoX had the key."""
    last = removed(name)
    day = last - timedelta(days=1) if last else NEWEST
    for value in values(name):
        text = f"{SIZES}{name}: {yaml_value(value)}\ndialect: {day}\n"
        try:
            before, after = migrated(text)
        except Problems as stop:  # with the line and what to write
            assert all(problem.what and problem.where for problem in stop.problems), text
            continue
        assert changed(before, after) == {}, text


@pytest.mark.parametrize("value", ["", "moe_token_dropping: true\n", "moe_token_dropping: true\nmoe_min_capacity: 8\n"])
def test_experts_of_march_2024_keep_their_capacity(value: str) -> None:
    """`num_experts` had this name from March to May 2024, when tokens beyond an expert's capacity were dropped."""
    text = f"{SIZES}num_experts: 4\n{value}"
    for dialect in ("dialect: 2024-03-07\n", ""):
        before, after = migrated(text + dialect)
        assert before.get("moe_token_dropping") is after.get("moe_token_dropping") is True
        assert before.get("moe_min_capacity") == after.get("moe_min_capacity")


def test_a_file_of_2021_without_a_dialect_is_read_as_one_of_2021() -> None:
    """Its keys were removed long before the newest dialect, so its defaults are not those of today."""
    text = f"{SIZES}pos_emb: rotary\nsparsity: none\ncheckpoint_activations: true\n"
    old = draft([File("my.yml", text)])
    assert old.dialect.name == "2021-05-01"
    pinned(old.dialect.reason)
    before, after = migrated(text)
    assert before.get("warmup_from_zero") is after.get("warmup_from_zero") is True
    assert before.get("attention_dropout") == after.get("attention_dropout") == 0.1
    assert before.get("deepspeed_activation_checkpointing") == after.get("deepspeed_activation_checkpointing")
    # Keys that no GPT-NeoX had together tell nothing about the end.
    assert draft([File("my.yml", text + "num_kv_heads: 2\n")]).dialect.date == NEWEST
