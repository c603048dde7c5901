"""Runs of GPT-NeoX's own code: two that are part of the repository, and others outside of it.

`tests/reference/README.md` describes them.
"""

from __future__ import annotations

import atexit
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import REFERENCE, ROOT

#: The runs in `neox_runs.tar.xz`.
KEPT = ("llama", "pythia")
OUTSIDE = ROOT.parent / "shared" / "reference" / "neox_runs"
needs_all_runs = pytest.mark.skipif(not OUTSIDE.is_dir(), reason=f"GPT-NeoX's other runs are not in {OUTSIDE}")


@cache
def unpacked() -> Path:
    """Return a folder with the runs of the repository and their data, removed when Python ends."""
    folder = tempfile.mkdtemp(prefix="neox_runs_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(REFERENCE / "neox_runs.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return Path(folder)


def folder_of(name: str) -> Path:
    """Return the folder of a run."""
    return (unpacked() if name in KEPT else OUTSIDE) / name


def with_marks(*names: str) -> list[object]:
    """Return the names of runs as parameters of a test, which skips those that are not there."""
    return [name if name in KEPT else pytest.param(name, marks=needs_all_runs) for name in names]
