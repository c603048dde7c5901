"""What is interrupted while it replaces a file leaves the old file or none, and nothing beside it."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from neoxargs.base.files import Text, replace_text, replacing, replacing_all, replacing_folder
from neoxargs.base.write_files import write_all
from neoxargs.convert.folder import output_folder
from neoxargs.files.run_record import write_record
from neoxargs.files.token_files import writer
from neoxargs.runs.lockfile import write_lock
from neoxargs.train.batches.samples import gpt_neox
from tests.support.configure import configure
from tests.support.refused import refused
from tests.support.snapshots import pinned


def _token_file(folder: Path, number: int) -> None:
    with writer.new_file(folder / "text", np.uint16) as file:
        file.add(np.full(number, number, np.uint16), [number], [True])


def _samples(folder: Path, number: int) -> None:
    gpt_neox.cached(folder, ["key", number], ["order"], lambda: {"order": np.arange(number)})


def _exported(folder: Path, number: int) -> None:
    with output_folder(folder / f"model{number}") as part:
        (part / "weights").write_text(str(number))


#: Each writes files of this number to a folder.
WRITERS: dict[str, Callable[[Path, int], object]] = {
    "text": lambda folder, number: replace_text(folder / "file", str(number)),
    "texts": lambda folder, number: write_all([Text(str(folder / name), f"{name} {number}") for name in "abc"]),
    "run record": lambda folder, number: write_record(configure(f"run_dir: {folder}\ntrain_iters: {number}")),
    "lock file": lambda folder, number: write_lock(configure(f"run_dir: {folder}\nseed: {number}"), "train.py"),
    "token file": _token_file,
    "sample cache": _samples,
    "exported model": _exported,
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def visible(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if not name.startswith(".")}


def interrupt_renames(then: Callable[[], None]) -> None:
    """Let the first rename of this process call `then` instead."""
    real = os.replace, Path.rename

    def instead(*_: object) -> None:
        os.replace, Path.rename = real  # type: ignore[method-assign]
        then()

    os.replace = Path.rename = instead  # type: ignore[assignment, method-assign]


def ctrl_c() -> None:
    raise KeyboardInterrupt


def test_the_error_that_comes_out_is_that_of_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only file system also refuses to remove files that do not exist."""
    monkeypatch.setattr(os, "unlink", Mock(side_effect=OSError(errno.EROFS, "read-only")))
    with pytest.raises(KeyError), replacing_all([tmp_path / "a", tmp_path / "b"]):
        raise KeyError


def test_folders_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for name in ("a", "b/in it", "n" * 300, "n" * 250):
        [problem] = refused(output_folder(tmp_path / name).__enter__)
        assert problem.id == "output-folder-unwritable"
    pinned(refused(output_folder(tmp_path / "a").__enter__))
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("name", WRITERS)
def test_after_ctrl_c_everything_is_as_it_was(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write = WRITERS[name]
    write(tmp_path, 1)
    before = contents(tmp_path)
    monkeypatch.setattr(os, "replace", os.replace)  # both are restored whatever happens
    monkeypatch.setattr(Path, "rename", Path.rename)
    interrupt_renames(ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 2)
    # The index and the checksums are removed first, so that they never describe other token ids.
    removed = {"text.idx", "text.checksums.json"} if name == "token file" else set()
    assert contents(tmp_path) == {file: content for file, content in before.items() if file not in removed}
    write(tmp_path, 2)
    assert contents(tmp_path) != before


@pytest.mark.parametrize("name", WRITERS)
def test_killed_it_leaves_no_visible_part(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path, 1)
    before = visible(contents(tmp_path))
    if not (child := os.fork()):
        try:
            interrupt_renames(lambda: os.kill(os.getpid(), signal.SIGKILL))
            WRITERS[name](tmp_path, 2)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    after = visible(contents(tmp_path))
    assert after and after.items() <= before.items()


def test_half_a_file_is_not_left(tmp_path: Path) -> None:
    replace_text(tmp_path / "file", "old")
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "file") as part:
        part.write_text("ne")
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), replacing_folder(tmp_path / "folder") as folder:
        (folder / "file").write_text("ne")
        raise KeyboardInterrupt
    assert contents(tmp_path) == {"file": b"old"} and [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("hard_links", [True, False])
def test_of_several_files_all_are_replaced_or_none(
    tmp_path: Path, hard_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a file is named twice, as by a link to it."""
    old, new, last = tmp_path / "old", tmp_path / "new", tmp_path / "folder"
    old.write_text("old")
    (last / "inside").mkdir(parents=True)
    before = contents(tmp_path)
    if not hard_links:
        monkeypatch.setattr(os, "link", _no_links)
    with pytest.raises(IsADirectoryError), replacing_all([old, new, old, last]) as parts:
        for part in parts:
            part.write_text("changed")
    assert contents(tmp_path) == before and len(list(tmp_path.iterdir())) == 2


def _no_links(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")
