"""The HTML page and its file."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from neoxargs.base.problems import Problems
from neoxargs.plan.command import print_plan
from neoxargs.plan.given.options import PlanOptions


def test_the_page_is_self_contained(middle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    assert print_plan(PlanOptions([middle], gpus=16, gpu_memory=24), page=str(page)) == 1
    written = page.read_text()
    assert "http" not in written and "<script" not in written
    assert "<pre>--set " in written
    assert written.count('class="cell"') == 16
    assert "prefers-color-scheme: dark" in written
    assert re.findall('aria-label="([^"]*)"', written) == ["Learning rate"] * 2 + ["Tokens"]


def test_a_page_that_cannot_be_written_is_a_problem_and_leaves_no_file(
    middle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    before = list(tmp_path.rglob("*"))
    for name in (tmp_path / "missing" / "plan.html", folder):
        with pytest.raises(Problems, match="cannot be written"):
            print_plan(PlanOptions([middle], gpus=8, as_json=True), page=str(name))
    assert capsys.readouterr().out == ""
    assert list(tmp_path.rglob("*")) == before


def test_a_named_pipe_is_written_to(middle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert print_plan(PlanOptions([middle], gpus=8), page=str(pipe)) == 0
        assert os.read(reader, 15) == b"<!DOCTYPE html>"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
