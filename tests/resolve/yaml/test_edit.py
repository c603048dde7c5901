"""A changed value says what it was, so that comments about the old one are not taken for the new one."""

from __future__ import annotations

import pytest

from neoxargs.base.files import Text
from neoxargs.resolve.suppressions import suppressions
from neoxargs.resolve.yaml.edit import Document


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a:\n  b: 1  # one\nc: 1  # c\n", "a:\n  b: 2  # was 1: one\nc: 1  # c\n"),
        ("# one\na:\n  b: 1\n", "# one\na:\n  b: 2  # was 1\n"),
        ("a: {b: 1, c: 2}  # one", "a: {b: 2, c: 2}  # b was 1: one"),
        ("a: {b: 1,  # one\n  c: 2}\n", "a: {b: 2,  # one\n  c: 2}  # b was 1\n"),
        ('{"a": {"b": 1}}\n', '{"a": {"b": 2}}\n'),
        ("a.b: '1 # 1'\r\n", "a.b: 2  # was '1 # 1'\r\n"),
        ("a:\n  b: 1 # deepy: ignore[x]\n", "a:\n  b: 2  # was 1  # deepy: ignore[x]\n"),
    ],
)
def test_the_old_value_is_said_beside_the_new_one(before: str, after: str) -> None:
    document = Document("my.yml", before)
    old = document.text[slice(*document.entries()["a.b"].value)]
    document.set("a.b", 2)
    document.say_what_was("a.b", old)
    assert document.text == after
    assert document.plain(document.entries()["a.b"]) == 2
    assert len([*suppressions([Text("", after)])]) == before.count("deepy")
