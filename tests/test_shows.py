"""The table of effects: what it says of a parameter, and when a run must fail for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import shows
from tests.support.shows import PAGE, SEED, effect, names, page, rows


def test_the_committed_page_has_the_seeds_rows_and_the_registrys_effects() -> None:
    table = rows(PAGE.read_text(encoding="utf-8"))
    assert [row[0] for row in table] == names()
    assert [row[1] for row in table] == [effect(name).strip("` ") for name in names()]


def test_names_are_known_without_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    if not SEED.exists():
        pytest.skip(f"no reference table {SEED}")
    from_table = names()
    monkeypatch.setattr(shows, "SEED", Path("nowhere"))
    assert names() == from_table
    assert len(from_table) == 138


def test_effects_of_parameters_and_sections() -> None:
    assert effect("num-layers") == "model"
    assert effect("mask-prob") == "none: only BERT, ICT and REALM read it"
    assert effect("scheduler") == "schedule"
    assert effect("zero_optimization") == "engine"


@pytest.mark.parametrize(
    ("tests", "before", "result"),
    [
        ({}, "", "not shown"),
        ({"t.py::a": "passed", "t.py::b": "skipped"}, "", "passed"),
        ({"t.py::a": "passed", "t.py::b": "failed"}, "", "failed"),
        ({"t.py::a": "skipped"}, "passed", "passed"),
        ({"t.py::a": "skipped"}, "", "skipped"),
    ],
)
def test_results(tests: dict[str, str], before: str, result: str) -> None:
    written = page({"lr": tests}, {"lr": before})
    assert next(row for row in rows(written) if row[0] == "lr")[-1] == result
    assert f"\n{int(result == 'passed')} of 138 shown.\n" in written


class Reported:
    """A test's report, as far as it is looked at."""

    def __init__(self, nodeid: str, outcome: str, name: str, when: str = "call") -> None:
        self.nodeid, self.outcome, self.when = nodeid, outcome, when
        self.passed = outcome == "passed"
        self.user_properties = [("shows", name)]


def test_a_page_that_differs_is_told(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shows, "ROOT", tmp_path)
    monkeypatch.setattr(shows, "PAGE", tmp_path / "effects.md")
    monkeypatch.delenv("UPDATE", raising=False)
    hooks = shows.Shows(pytestconfig)
    for name in hooks.known:
        hooks.pytest_runtest_logreport(Reported("t.py::a[1]", "passed", name))  # type: ignore[arg-type]
        hooks.pytest_runtest_logreport(Reported("t.py::a[1]", "passed", name, "teardown"))  # type: ignore[arg-type]
    assert hooks.shown["lr"] == {"t.py::a": "passed"}
    assert hooks._judge() == "effects.md is not what the tests have shown; write it with UPDATE=1 pytest -m shows"
    monkeypatch.setenv("UPDATE", "1")
    assert hooks._judge() == ""
    monkeypatch.delenv("UPDATE")
    assert hooks._judge() == ""
    del hooks.shown["lr"]
    monkeypatch.setenv("UPDATE", "1")
    assert hooks._judge() == "not shown by any test: lr"
