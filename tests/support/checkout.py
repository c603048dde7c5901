"""A copy of the repository for tests that change its code as a contributor would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT


def copied(folder: Path) -> Path:
    """Copy the repository without hidden files, caches, and what runs and builds have written; return the folder."""

    def ignored(of: str, names: list[str]) -> set[str]:
        written = {"runs", "build", "dist"} if Path(of) == ROOT else set()
        return {name for name in names if name.startswith(".") or name in {"__pycache__", *written}}

    return Path(shutil.copytree(ROOT, folder, ignore=ignored))


def insert(file: Path, at: str, before: str, after: str) -> None:
    """Insert text before and after the first place with the text `at`, which must exist."""
    text = file.read_text(encoding="utf-8")
    assert at in text, f"{file}: {at}"
    file.write_text(text.replace(at, before + at + after, 1), encoding="utf-8")


def replace(file: Path, changes: dict[str, str]) -> None:
    """Replace texts, each of which must stand there once; what replaces "" is the text of a new file."""
    text = "" if "" in changes else file.read_text(encoding="utf-8")
    for before, after in changes.items():
        assert text.count(before) == 1, f"{file}: {before}"
        text = text.replace(before, after)
    file.write_text(text, encoding="utf-8")


def run(folder: Path, *words: str, **variables: str) -> str:
    """Run Python in a copy; return what it prints."""
    environ = {**os.environ, "PYTHONPATH": str(folder), **variables}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout
