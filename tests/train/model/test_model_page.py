"""The names that docs/model.md tells readers to open exist where it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import DOCS, ROOT

#: `Class.method`, `function` or `Class`, before the link to its module.
NAMED = re.compile(r"`(\w+)(?:\.(\w+))?` (?:in|of) \[[^\]]+\]\(\.\./([^)]+)\)")

#: Beside what a reader wants to see: a line to search for, and the link to its module.
SEARCHED = re.compile(r"^\| [^|]+ \| `([^`|]+)` \| \[[^\]]+\]\(\.\./([^)]+)\) \|", re.MULTILINE)


def missing(page: str, root: Path) -> list[str]:
    """Return the names that the module beside them does not define."""
    found = []
    for name, member, module in NAMED.findall(page):
        text = (root / module).read_text(encoding="utf-8")
        own = re.search(rf"^(?:class|def) {name}\b.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
        if own is None or (member and not re.search(rf"(?:def |self\.){member}\b", own[0])):
            found.append(f"{module}: {name}.{member}".rstrip("."))
    return found


def test_the_page_names_what_there_is() -> None:
    page = (DOCS / "model.md").read_text(encoding="utf-8")
    assert len(NAMED.findall(page)) > 12
    assert missing(page, ROOT) == []


def test_each_line_to_search_for_stands_once_in_its_module() -> None:
    lines = SEARCHED.findall((DOCS / "model.md").read_text(encoding="utf-8"))
    assert len(lines) == 10
    assert [line for line, module in lines if (ROOT / module).read_text(encoding="utf-8").count(line) != 1] == []


@pytest.mark.parametrize("name", ["Engine.train_step", "Trainer.train"])
def test_a_name_that_is_gone_is_found(name: str) -> None:
    page = f"| one step | `{name}` in [steps.py](../neoxargs/train/engine/steps.py) |"
    assert missing(page, ROOT) == [f"neoxargs/train/engine/steps.py: {name}"]
