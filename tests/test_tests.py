"""How tests are written: what several share is in tests/support, and one module there knows where files lie."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import snapshots
from tests.support.each import for_each
from tests.support.paths import ROOT

MODULES = sorted((ROOT / "tests").rglob("*.py"))


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def imported(path: Path) -> Iterator[str]:
    """Every module of the tests that is imported, and every name that may be one."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports by a relative name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_test_module_is_imported() -> None:
    crossing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in MODULES
        for name in imported(path)
        if name.startswith("tests.") and ".test_" in name
    }
    assert crossing == set(), "move what both need to tests/support"


def test_where_files_lie_is_asked_of_one_module() -> None:
    climbing = {
        str(path.relative_to(ROOT))
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr == "parents"
    }
    assert climbing == {"tests/support/paths.py"}


#: Asserts that still contain a sentence; may only shrink.
WITH_A_SENTENCE = 138


def says(node: ast.AST) -> bool:
    """Whether an expression has a text of five words or more, other than what it passes to a call."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) >= 5:
        return bool(re.search("[a-z]+,? [a-z]+,? [a-z]+", node.value))
    return not isinstance(node, ast.Call) and any(map(says, ast.iter_child_nodes(node)))


def test_a_sentence_is_pinned_in_a_snapshot() -> None:
    """A test asserts the id, the place and `about` of a problem; tests/support/snapshots.py pins how it is worded."""
    asserts = [node.test for path in MODULES for node in nodes(path) if isinstance(node, ast.Assert)]
    assert sum(map(says, asserts)) <= WITH_A_SENTENCE
    (planted,) = ast.parse("assert 'there is no such file' in shown").body
    assert isinstance(planted, ast.Assert) and says(planted.test)


def test_each_case_that_fails_is_named() -> None:
    @for_each([1, 2, 3, 4])
    def is_odd(number: int) -> None:
        assert number % 2

    with pytest.raises(pytest.fail.Exception, match=r"^2: AssertionError.*\n(.*\n)*4: AssertionError"):
        is_odd()


def function_of(name: str) -> str:
    """Return the function of a test whose text is in a snapshot."""
    return name.partition("[")[0].partition(" ")[0].rpartition("::")[2]


def test_every_pinned_text_belongs_to_a_test() -> None:
    """`UPDATE=1` writes the texts of the tests that run, and leaves those of tests that no longer exist."""
    stale = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in (ROOT / "tests").rglob("snapshots/test_*.txt")
        for name in snapshots.read(file)
        if not re.search(rf"def {function_of(name)}\(", (file.parent.parent / f"{file.stem}.py").read_text("utf-8"))
    }
    assert stale == set()
    assert function_of("TestOrder::test_it[a::b c] 2") == "test_it"


def measures(node: ast.AST) -> bool:
    """Whether this is a CPU clock, or the time since another time."""
    if isinstance(node, ast.Attribute):
        return node.attr in {"process_time", "thread_time", "perf_counter"}
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and "time.monotonic()" in ast.unparse(node)


def test_no_test_measures_time() -> None:
    """A deadline that aborts what hangs is `time.monotonic() + seconds`; durations belong in bench/."""
    timed = {str(path.relative_to(ROOT)) for path in MODULES for node in nodes(path) if measures(node)}
    assert {path for path in timed if "/test_" in path} == set()
    assert any(map(measures, ast.walk(ast.parse("assert time.monotonic() - begun < 30"))))
    assert "tests/fuzz/judge.py" in timed  # which reports the slowest inputs
