"""`deepy docs`: the committed files are up to date, and `--check` and `-o` work."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.cli import main
from neoxargs.commands.docs import command as docs
from neoxargs.commands.docs import parameters
from neoxargs.commands.docs.command import FILES, ROOT, Generated, write_docs
from tests.support.refused import refused
from tests.support.snapshots import pinned


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path)
def test_committed_files_are_up_to_date(file: Generated) -> None:
    assert (ROOT / file.path).read_text(encoding="utf-8") == file.text(), "run `python deepy.py docs`"


def test_writing_and_checking_another_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "new"
    paths = [str(folder / "parameters.md"), str(folder / "neoxargs.schema.json")]
    assert write_docs(check=True, directory=str(folder)) == paths
    assert list(tmp_path.iterdir()) == []
    assert write_docs(directory=str(folder)) == paths
    assert write_docs(check=True, directory=str(folder)) == []
    (folder / "parameters.md").write_text("old", encoding="utf-8")
    assert write_docs(directory=str(folder)) == paths[:1]
    assert (folder / "parameters.md").read_text(encoding="utf-8") == parameters.page()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository in which all generated files are stale."""
    for file in FILES:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_text("old", encoding="utf-8")
    files = tuple(file._replace(text=lambda path=file.path: f"{path} as it should be") for file in FILES)
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "FILES", files)
    return tmp_path


def test_one_command_checks_and_writes_all_files(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [file.path for file in FILES]
    assert {"docs/parameters.md", "neoxargs/config/groups.py", "docs/quickstart.md"} < set(paths)
    assert main(["docs", "--check"]) == 1
    pinned(capsys.readouterr().out.splitlines())
    assert (repository / paths[0]).read_text() == "old"
    assert main(["docs"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{path} written" for path in paths]
    assert all((repository / path).read_text() == f"{path} as it should be" for path in paths)
    assert main(["docs", "--check"]) == 0


def test_an_installed_deepy_requires_an_output_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "IS_CHECKOUT", False)
    assert [problem.id for problem in refused(write_docs)] == ["docs-need-output-folder"]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert [problem.id for problem in refused(write_docs, directory=str(tmp_path / "file"))] == [
        "output-folder-unwritable"
    ]
