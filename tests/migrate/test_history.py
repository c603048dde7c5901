"""Every name that GPT-NeoX ever dropped or added is rewritten, removed, kept, or refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.base.files import Text
from neoxargs.base.problems import Problems
from neoxargs.migrate.neox.migrate import migrate
from neoxargs.migrate.result import Result
from neoxargs.registry import REGISTRY, normal
from neoxargs.registry.history import introduced, removed
from neoxargs.resolve import File, draft
from neoxargs.resolve.yaml.edit import yaml_value
from tests.support.reference import read
from tests.support.selection import mostly_slow
from tests.support.valid_values import SIZES, values

#: Dropped by GPT-NeoX, and still read by deepy.
STILL_READ = {
    "apply_residual_connection_post_layernorm", "reset_attention_mask", "reset_position_ids",
    "zero_allow_untested_optimizer", "launcher_args", "rpe_causal",
}  # fmt: skip


def ever(what: str) -> list[str]:
    return sorted({name for event in read("neox_key_history.json") for name in event[what]})


DROPPED = [name for name in ever("removed") if removed(name)]
GAINED = [name for name in ever("added") if introduced(name)]


def migrated(name: str, value: Any, to: str) -> Result | Problems:
    dialect = "neox-2026" if to == "neox-2021" else "neox-2021"
    text = Text("my.yml", f"{SIZES}{name}: {yaml_value(value)}\ndialect: {dialect}\n")
    try:
        once = migrate([text], to)
    except Problems as stop:
        return stop
    assert migrate(once.texts, to).texts == once.texts
    return once


def keys(result: Result) -> set[str]:
    return {normal(key) for key in draft([File(*text) for text in result.texts]).values}


@pytest.mark.parametrize("name", mostly_slow(DROPPED))
def test_a_dropped_name(name: str) -> None:
    tried = list(values(name))
    assert tried
    for value in tried:
        result = migrated(name, value, "neox-2026")
        if isinstance(result, Problems):
            assert all(problem.where and problem.what for problem in result.problems), result
            assert name in str(result)
        elif f"\n{name}:" in result.texts[0].text:
            assert name in STILL_READ
            assert REGISTRY.parameters[name].effect != "none"
        else:
            assert any(change.before.startswith(name) and change.why and change.since for change in result.changes)


@pytest.mark.parametrize("name", mostly_slow(name for name in GAINED if not removed(name)))
def test_an_added_name(name: str) -> None:
    for value in values(name) if REGISTRY.find(name) else []:
        result = migrated(name, value, "neox-2021")
        if isinstance(result, Problems):
            assert all(problem.where and problem.what for problem in result.problems), result
        elif f"\n{name}:" in result.texts[0].text:
            assert any(f"GPT-NeoX added it on {introduced(name)}" in problem.what for problem in result.problems)
        else:
            assert any(change.before.startswith(name) for change in result.changes)


def test_every_parameter_of_february_2021() -> None:
    for row in read("parameter_history.tsv"):
        seed, now = row["seed_name"], row["HEAD_name"]
        parameter = REGISTRY.find(seed)
        if normal(seed) in REGISTRY.sections:
            continue
        assert parameter, seed
        if row["status_at_HEAD"].startswith(("kept", "respelled")):
            assert parameter.name == now
            assert removed(seed) is None
        elif normal(seed) not in STILL_READ:
            assert removed(seed), seed
            assert parameter.replaced_by or parameter.name != normal(seed) or normal(seed) in DROPPED
