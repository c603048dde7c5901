"""The table of effects names, for each parameter of the seed's table, the tests that are marked to show it."""

from __future__ import annotations

import os

import pytest

from neoxargs.registry import REGISTRY, normal
from tests.support.selection import runs_all_files
from tests.support.shows import PAGE, SHOWN, effect, names, page, rows


def test_the_committed_page_has_the_seeds_rows_and_the_registrys_effects() -> None:
    table = rows(PAGE.read_text(encoding="utf-8"))
    assert [row[0] for row in table[:138]] == names()
    assert [row[1] for row in table] == [effect(row[0]).strip("` ") for row in table]


def test_every_mark_names_a_parameter_or_a_section(pytestconfig: pytest.Config) -> None:
    shown = pytestconfig.stash[SHOWN]
    unknown = [name for name in shown if not (REGISTRY.find(name) or normal(name) in REGISTRY.sections)]
    assert not unknown, {name: sorted(shown[name]) for name in unknown}


def test_effects_of_parameters_and_sections() -> None:
    assert effect("num-layers") == "model"
    assert effect("mask-prob") == "none: only BERT, ICT and REALM read it"
    assert effect("scheduler") == "schedule"
    assert effect("zero_optimization") == "engine"


def test_the_effects_page_names_the_marked_tests(pytestconfig: pytest.Config) -> None:
    if not runs_all_files(pytestconfig):
        pytest.skip("compared where all tests are collected")
    shown = pytestconfig.stash[SHOWN]
    assert [name for name in names() if name not in shown] == [], "shown by no test"
    if os.environ.get("UPDATE"):
        PAGE.write_text(page(shown), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(shown), "write it with UPDATE=1 pytest -k effects_page"
