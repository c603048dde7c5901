"""docs/gpus.md names tests that exist."""

from __future__ import annotations

import re

from tests.support.paths import DOCS, ROOT

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_the_tests_that_the_page_names_exist() -> None:
    named = NAMED.findall((DOCS / "gpus.md").read_text(encoding="utf-8"))
    assert len(named) >= 30
    for path, name in named:
        assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


def test_every_row_names_a_test() -> None:
    text = (DOCS / "gpus.md").read_text(encoding="utf-8")
    for section in ("| fault | found by |", "| behaviour | test |"):
        rows = text.partition(section)[2].partition("\n\n")[0].splitlines()[2:]
        assert rows
        for row in rows:
            assert NAMED.search(row), row
