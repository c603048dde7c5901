"""A dialect is a date: written, or seen from the names."""

from __future__ import annotations

from datetime import date

import pytest

from neoxargs.problems import render
from neoxargs.registry.history import NEWEST, SEED
from neoxargs.resolve.compose import Text
from neoxargs.resolve.dialect import Dialect
from neoxargs.resolve.merge import draft


def dialect(text: str, *sets: str) -> Dialect:
    drafted = draft([Text("my.yml", text)], sets)
    assert not drafted.problems, render(drafted.problems)
    return drafted.dialect


@pytest.mark.parametrize(
    ("text", "day", "name"),
    [
        ("dialect: neox-2021\npos-emb: rotary", SEED, "neox-2021"),
        ("dialect: NeoX-2026", NEWEST, "neox-2026"),
        ("dialect: 2022-12-14", date(2022, 12, 14), "2022-12-14"),
        ("dialect: 2021-02-28", SEED, "neox-2021"),
        ("dialect: 2031-01-01", date(2031, 1, 1), "2031-01-01"),
        ("num-layers: 2\nsave-interval: 1", SEED, "neox-2021"),
        ("num-layers: 2\npos-emb: rotary", NEWEST, "neox-2026"),
        ("bf16: {enabled: true}", NEWEST, "neox-2026"),
        ("zero_optimization: {stage: 1}", SEED, "neox-2021"),
    ],
)
def test_which_dialect(text: str, day: date, name: str) -> None:
    found = dialect(text)
    assert (found.date, found.name) == (day, name)


def test_the_reason_names_the_place() -> None:
    assert dialect("seed: 1\npos-emb: rotary").reason == "pos_emb (my.yml:2:1) exists since 2021-03-04"
    assert dialect("dialect: neox-2021").reason == "dialect: neox-2021 (my.yml:1:1)"
    assert dialect("seed: 1", "dialect=neox-2026").reason == "dialect: neox-2026 (--set dialect=neox-2026)"
    assert dialect("seed: 1").reason == "every name in it is as old as 2021-02-28"


@pytest.mark.parametrize(
    "bad", ["neox-2020", "2021-02-27", "2022-13-01", "yesterday", "20220101", "2022-W01-1", '"20220101x"']
)
def test_what_is_no_dialect(bad: str) -> None:
    (problem,) = draft([Text("my.yml", f"dialect: {bad}")]).problems
    assert problem.what.startswith("dialect (")
    assert problem.where


def test_defaults_follow_the_day() -> None:
    assert "attention_dropout" not in Dialect(SEED, "").defaults()
    newest = Dialect(NEWEST, "").defaults()
    assert newest["attention_dropout"].value == 0.0
    assert str(newest["attention_dropout"].source) == "default: neox-2026"
    between = Dialect(date(2023, 12, 25), "").defaults()
    assert "attention_dropout" not in between
