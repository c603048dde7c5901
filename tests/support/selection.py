"""Which tests run: a plain `pytest` leaves the slow ones to `pytest --rest`; what is named on the command line runs."""

from __future__ import annotations

import pytest

#: The marks of what a plain run leaves out.
REST = ("slow", "cluster", "compiler")
#: The fixtures that start a cluster's programs (tests/launch/conftest.py); who asks for one is marked `cluster`.
CLUSTER = {"hosts", "node"}


def add_option(parser: pytest.Parser) -> None:
    help_text = f"run what plain `pytest` leaves out: the tests marked {', '.join(REST)}"
    parser.addoption("--rest", action="store_true", help=help_text)


def runs_all_files(config: pytest.Config) -> bool:
    """Were all tests collected, or only the files that the command line names?"""
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


def processes(config: pytest.Config) -> int:
    """How many processes run the tests: a few tests are over before two have imported anything."""
    return 2 if runs_all_files(config) else 0


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out one of the two parts."""
    if not runs_all_files(config) or config.option.markexpr or config.option.keyword:
        return
    for item in items:
        if isinstance(item, pytest.Function) and CLUSTER & _fixtures(item):
            item.add_marker("cluster")
    rest = [item for item in items if any(item.get_closest_marker(mark) for mark in REST)]
    left_out = set(items) - set(rest) if config.option.rest else set(rest)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
    # Files with ranks take longest: begun last, one of them would run alone.
    items.sort(key=lambda item: "/train/" not in item.nodeid)


def _fixtures(item: pytest.Function) -> set[str]:
    """The fixtures that a test asks for; parameters may have the name of one."""
    callspec = getattr(item, "callspec", None)
    return set(item.fixturenames) - set(callspec.params if callspec else ())
