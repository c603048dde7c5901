"""Selects the tests to run: plain `pytest` leaves the slow ones to `--rest`; tests that are named always run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

#: The marks of the tests that plain `pytest` leaves out.
REST = ("slow", "cluster", "compiler")
#: Where the files of tests are that take longest.
LONG = ("tests/processes/", "tests/test_", "tests/train/")
#: Fixtures that start a cluster's programs (tests/support/fixtures.py); tests that use one are marked `cluster`.
CLUSTER = {"hosts", "machines", "node"}


def add_option(parser: pytest.Parser) -> None:
    help_text = f"run what plain `pytest` leaves out: the tests marked {', '.join(REST)}"
    parser.addoption("--rest", action="store_true", help=help_text)


def mostly_slow(values: Iterable[Any], every: int = 3) -> list[Any]:
    """Return the values as parameters of a test, of which plain `pytest` runs one in `every`."""
    slow = pytest.mark.slow
    return [pytest.param(value, marks=[slow] if number % every else []) for number, value in enumerate(values)]


def runs_all_files(config: pytest.Config) -> bool:
    """Whether all tests were collected, not only the files that the command line names."""
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


def processes(config: pytest.Config) -> int:
    """Return the number of pytest processes. A few tests finish before a second process has done its imports."""
    return 2 if runs_all_files(config) else 0


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect either the tests with the marks of REST or, with `--rest`, all others."""
    if not runs_all_files(config) or config.option.markexpr or config.option.keyword:
        return
    for item in items:
        if isinstance(item, pytest.Function) and CLUSTER & _fixtures(item):
            item.add_marker("cluster")
    rest = [item for item in items if any(item.get_closest_marker(mark) for mark in REST)]
    left_out = set(items) - set(rest) if config.option.rest else set(rest)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
    # One of them would run alone at the end.
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def _fixtures(item: pytest.Function) -> set[str]:
    """Return the fixtures of a test, without parameters that have the name of a fixture."""
    callspec = getattr(item, "callspec", None)
    return set(item.fixturenames) - set(callspec.params if callspec else ())
