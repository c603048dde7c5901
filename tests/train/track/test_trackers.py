"""A folder of a run that vanishes is created again, with one warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.train.track.trackers import RunFolders
from tests.support.snapshots import pinned


def test_a_folder_that_vanishes_is_created_again(tmp_path: Path) -> None:
    run, save = tmp_path / "run", tmp_path / "a" / "save"
    folders = RunFolders({"run_dir": run, "save": save})
    run.mkdir()
    assert folders.restore() == []
    assert not save.exists()  # it never existed
    save.mkdir(parents=True)
    assert folders.restore() == []
    save.rename(tmp_path / "renamed")
    [warning] = folders.restore()
    pinned(warning)
    assert (warning.severity, warning.about) == ("warning", ("save",))
    assert save.is_dir()
    assert folders.restore() == []


def test_a_file_in_its_place_is_an_error(tmp_path: Path) -> None:
    folders = RunFolders({"run_dir": tmp_path / "run"})
    (tmp_path / "run").mkdir()
    folders.restore()
    (tmp_path / "run").rmdir()
    (tmp_path / "run").touch()
    with pytest.raises(FileExistsError):
        folders.restore()
