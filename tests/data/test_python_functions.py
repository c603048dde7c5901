"""Conversations about functions: what is asked, what is answered, and which module is for which part."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from neoxargs.data.python_functions import SOURCES, documents, functions, is_for_validation, modules
from neoxargs.data.text_files import standard_library

MODULE = '''\
import os


class A:
    @property
    def deep(self, x: int = 1, *rest) -> int:
        """Return more:
        much more.

        Not this.
        """

        # a comment
        return x \x20
    async def later(self): "One."; return 2

    def undocumented(self):
        return 3

    def empty(self):
        """Nothing follows."""


def outer():
    """Outer."""
    def inner():
        \'\'\'Inner.\'\'\'
        return """
    text"""
    return inner
'''


def test_questions_and_sources() -> None:
    found = [tuple(function) for function in functions(MODULE)]
    deep = "def deep(self, x: int = 1, *rest) -> int:\n\n    # a comment\n    return x"
    inner = 'def inner():\n        return """\n    text"""'
    outer = (
        "def outer():\n    def inner():\n        '''Inner.'''\n        return \"\"\"\n    text\"\"\"\n    return inner"
    )
    assert found == [
        (6, "deep(self, x: int=1, *rest): Return more: much more.", deep),
        (24, "outer(): Outer.", outer),
        (26, "inner(): Inner.", inner.replace("        return", "    return").replace("    text", "text")),
    ]
    assert list(functions("def broken(:")) == []


def test_a_function_is_a_conversation_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(MODULE, encoding="utf-8")
    raws = list(documents(tmp_path / "a.py"))
    assert [(raw.path, raw.start) for raw in raws] == [(str(tmp_path / "a.py"), line) for line in (6, 24, 26)]
    row = json.loads(raws[1].line or b"")
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
    assert row["messages"][0]["content"] == "outer(): Outer."


def test_every_module_of_the_standard_library_is_for_one_part() -> None:
    parts = {source: modules(source) for source in SOURCES}
    train, validation = parts.values()
    assert sorted([*train, *validation]) == standard_library()
    assert 0.05 < len(validation) / len(train) < 0.2
    assert [is_for_validation(name) for name in ("textwrap.py", "json/decoder.py", "bisect.py")] == [False] * 3


def test_sources_are_python(tmp_path: Path) -> None:
    path = Path(ast.__file__)
    found = list(functions(path.read_text(encoding="utf-8")))
    assert len(found) > 20
    for function in found:
        ast.parse(function.source)
        assert "\n" not in function.question
