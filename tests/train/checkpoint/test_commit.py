"""A checkpoint folder stays usable after a kill or a full disk at any moment of a save."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.train.checkpoint import commit


def write(root: Path, iteration: int, content: str = "weights") -> Path:
    part = commit.begin(root, iteration)
    (part / "sub").mkdir()
    (part / "model.pt").write_text(content)
    (part / "sub" / "optimizer.pt").write_text("moments")
    return commit.commit(root, iteration)


def prune(root: Path, kept: int) -> None:
    removal = commit.Removal()
    removal.prune(root, kept)
    removal.wait()


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_committed_checkpoint_is_the_newest(tmp_path: Path) -> None:
    write(tmp_path, 90)
    whole = write(tmp_path, 100)
    assert checkpoint_folder.newest(tmp_path) == whole
    assert (tmp_path / "latest").read_text() == "global_step100"
    assert json.loads((whole / "files.json").read_text()) == {
        "model.pt": {"bytes": 7, "crc32": "1ad27358"},
        "sub/optimizer.pt": {"bytes": 7, "crc32": "23e38147"},
    }
    assert names(tmp_path) == ["global_step100", "global_step90", "latest"]


def test_an_empty_or_missing_folder_has_none(tmp_path: Path) -> None:
    assert checkpoint_folder.newest(tmp_path) is None
    assert checkpoint_folder.newest(tmp_path / "missing") is None


def test_a_partial_checkpoint_is_never_chosen_and_removed_by_the_next_save(tmp_path: Path) -> None:
    whole = write(tmp_path, 100)
    (commit.begin(tmp_path, 200) / "model.pt").write_text("wei")  # the process is killed at this point
    assert checkpoint_folder.newest(tmp_path) == whole
    write(tmp_path, 200)
    assert names(tmp_path) == ["global_step100", "global_step200", "latest"]


@pytest.mark.parametrize("name", [".removing-global_step100", ".writing-global_step200", "global_step200"])
@pytest.mark.parametrize("target", ["folder", "missing", ""])
def test_links_and_files_are_never_in_the_way_of_a_save(tmp_path: Path, name: str, target: str) -> None:
    """As left by an interrupted removal of a checkpoint that is a symbolic link; what a link points to remains."""
    folder, root = tmp_path / "folder", tmp_path / "save"
    folder.mkdir()
    (folder / "model.pt").write_text("theirs")
    write(root, 100)
    if target:
        (root / name).symlink_to(tmp_path / target)
    else:
        (root / name).write_text("a file")
    whole = write(root, 200)
    assert not whole.is_symlink() and not checkpoint_folder.damage(whole)
    assert names(root) == ["global_step100", "global_step200", "latest"]
    assert (folder / "model.pt").read_text() == "theirs"


def test_a_linked_checkpoint_is_removed_as_a_link(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "save", tmp_path / "elsewhere"
    write(root, 100).rename(elsewhere)
    (root / "global_step100").symlink_to(elsewhere)
    write(root, 200)
    prune(root, 1)
    assert names(root) == ["global_step200", "latest"]
    assert (elsewhere / "model.pt").exists()


def test_a_leftover_that_another_process_removes_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `rm -r` of a user does."""
    write(tmp_path, 100)
    (tmp_path / ".removing-global_step50").mkdir()
    rmtree = shutil.rmtree

    def second(path: Path) -> None:
        rmtree(path)
        rmtree(path)

    monkeypatch.setattr(shutil, "rmtree", second)
    write(tmp_path, 200)
    assert names(tmp_path) == ["global_step100", "global_step200", "latest"]


@pytest.mark.parametrize(("owner", "step"), [(commit, "point_latest_at"), (Path, "rename")])
def test_killed_before_the_rename_or_before_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, step: str
) -> None:
    first = write(tmp_path, 100)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, step, _killed)
        write(tmp_path, 200)
    assert checkpoint_folder.newest(tmp_path) == first
    assert owner is commit or checkpoint_folder.checkpoints(tmp_path) == [first]
    # NeoX and DeepSpeed load what `latest` names, and look for no other.
    assert (tmp_path / "latest").read_text() == "global_step100"
    assert write(tmp_path, 200) == checkpoint_folder.newest(tmp_path)


@pytest.mark.parametrize("harm", ["shorten", "delete", "list"])
def test_a_damaged_checkpoint_is_detected_and_the_previous_one_chosen(tmp_path: Path, harm: str) -> None:
    first, second = write(tmp_path, 100), write(tmp_path, 200)
    if harm == "shorten":
        os.truncate(second / "model.pt", 3)
    elif harm == "delete":
        (second / "sub" / "optimizer.pt").unlink()
    else:
        (second / "files.json").write_text("{")
    assert checkpoint_folder.damage(second)
    assert checkpoint_folder.newest(tmp_path) == first


def test_latest_may_name_an_older_one_and_is_ignored_if_it_names_none(tmp_path: Path) -> None:
    first, second = write(tmp_path, 100), write(tmp_path, 200)
    for name, chosen in (("global_step100\n", first), ("global_step999", second)):
        (tmp_path / "latest").write_text(name)
        assert checkpoint_folder.newest(tmp_path) == chosen


def test_another_programs_checkpoint_is_taken_on_trust(tmp_path: Path) -> None:
    (tmp_path / "global_step7").mkdir()
    (tmp_path / "global_step7" / "mp_rank_00_model_states.pt").touch()
    (tmp_path / "latest").write_text("global_step7")
    assert checkpoint_folder.newest(tmp_path) == tmp_path / "global_step7"


def test_the_same_iteration_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, 100, "old")
    whole = write(tmp_path, 100, "newer")
    assert (whole / "model.pt").read_text() == "newer"
    assert names(tmp_path) == ["global_step100", "latest"]


def test_killed_while_the_replaced_one_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 100, "old")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", _killed)
        write(tmp_path, 100, "newer")
    whole = checkpoint_folder.newest(tmp_path)
    assert whole and (whole / "model.pt").read_text() == "newer"


def test_prune_keeps_the_newest_whatever_the_times_of_the_files(tmp_path: Path) -> None:
    for time, iteration in ((1, 500), (5, 600), (4, 10), (3, 20), (2, 30)):  # 500 and 600 are an earlier run's
        os.utime(write(tmp_path, iteration) / "files.json", (time, time))
    order = [30, 20, 10, 600, 500]
    assert checkpoint_folder.newest_first(tmp_path) == [tmp_path / f"global_step{number}" for number in order]
    prune(tmp_path, 2)
    assert [path.name for path in checkpoint_folder.checkpoints(tmp_path)] == ["global_step20", "global_step30"]


def test_training_does_not_wait_for_the_removal_of_old_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are removed once the newest one is on the disk."""
    may_flush, flushed = threading.Event(), list[list[str]]()

    def slow_flush(descriptor: int) -> None:
        may_flush.wait(60)
        flushed.append(names(tmp_path))

    for iteration in (10, 20):
        write(tmp_path, iteration)
    monkeypatch.setattr(commit.os, "fsync", slow_flush)
    removal, before = commit.Removal(), names(tmp_path)
    removal.prune(tmp_path, 1)
    assert names(tmp_path) == before
    may_flush.set()
    removal.wait()
    assert flushed == [before] * 6  # the folder, and the checkpoint with three files and a folder
    assert names(tmp_path) == ["global_step20", "latest"]


def test_old_checkpoints_that_cannot_be_removed_are_kept_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here because the newest one cannot be flushed, so that a power failure could leave none."""
    for iteration in (10, 20):
        write(tmp_path, iteration)
    before = names(tmp_path)

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(commit.os, "fsync", fail)
    prune(tmp_path, 1)
    assert names(tmp_path) == before
    assert f"warning: old checkpoints in {tmp_path} cannot be removed: " in capsys.readouterr().out


def _killed(*_: object) -> None:
    raise KeyboardInterrupt
