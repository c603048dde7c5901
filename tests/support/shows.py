"""Generates docs/effects.md: the tests that change a parameter and assert its effect.

`@pytest.mark.shows("num-layers", ...)` marks such tests. The page has a row for each parameter of GPT-NeoX's first
table (tests/reference/seed_parameters.tsv), and for each other parameter that a test is marked with.
tests/test_shows.py compares it with the marks of all tests.
"""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from neoxargs.commands.docs.parameters import effect_words
from neoxargs.registry import REGISTRY, Parameter, normal
from tests.support.paths import DOCS
from tests.support.reference import read

PAGE = DOCS / "effects.md"
HEAD = """\
<!-- Generated from the marks of the tests: run `UPDATE=1 pytest -k effects_page` to regenerate this page. -->

# Effects

This table lists the parameters of GPT-NeoX's first release (February 2021), then others that tests are marked with:
what each of them affects, and the tests that change the parameter and assert its effect. [Parameters](parameters.md)
explains the *Effect* column.

| Parameter | Effect | Tests |
|---|---|---|
"""


def names() -> list[str]:
    """Return the parameters of the seed's table: GPT-NeoX's first."""
    return [row["name"] for row in read("seed_parameters.tsv")]


def rows(page: str) -> list[list[str]]:
    """Return the cells of the table's rows."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip(" `") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[1:]]


def effect(name: str) -> str:
    """Return the declared effect, with the reason if there is none; for a section, the effect of its first key."""
    group = REGISTRY.sections.get(normal(name))
    parameter: Parameter | None = next(iter(group.parameters.values())) if group else REGISTRY.find(name)
    assert parameter is not None, name
    return effect_words(parameter) if parameter.effect == "none" else parameter.effect


def page(tests: dict[str, set[str]]) -> str:
    """Return the text of the page. tests: parameter -> its marked tests (file::name)."""
    others = sorted(set(tests) - set(names()))
    lines = [_row(name, tests.get(name, set())) for name in [*names(), *others]]
    return HEAD + "\n".join(lines) + "\n"


def _row(name: str, tests: set[str]) -> str:
    # <wbr> lets a narrow page break the line between file and name only
    cell = "<br>".join(f"`{test.replace('::', '`<wbr>`::', 1)}`" for test in sorted(tests))
    return f"| `{name}` | {effect(name).replace('|', chr(92) + '|')} | {cell} |"


def collect(items: list[pytest.Item]) -> dict[str, set[str]]:
    """Return parameter -> the tests marked with it."""
    tests = defaultdict[str, set[str]](set)
    for item in items:
        for name in (name for mark in item.iter_markers("shows") for name in mark.args):
            tests[name].add(item.nodeid.partition("[")[0])
    return tests


#: The result of `collect` for this test run, before tests are deselected.
SHOWN = pytest.StashKey[dict[str, set[str]]]()
