"""GPT-NeoX's scripts have the names of ours: the file that is there is the user's, else ours runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neoxargs.base.problems import Problems
from neoxargs.base.programs import Script, find_script
from neoxargs.base.shipped import SHIPPED
from neoxargs.cli import main
from neoxargs.launch.start.run import Ended
from tests.support import smallest
from tests.support.snapshots import pinned

THEIRS = "from megatron.training import pretrain\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["train.py", "generate.py", "eval.py"])
def test_a_file_of_that_name_here_is_the_users(name: str) -> None:
    assert find_script(name) == Script(str(SHIPPED / name), name.removesuffix(".py"))  # type: ignore[arg-type]
    Path(name).write_text(THEIRS)
    assert find_script(name) == Script(name)
    assert find_script(str(Path(name).absolute())) == Script(str(Path(name).absolute()))


def test_ours_is_ours_from_its_own_folder_by_its_path_and_in_another_checkout(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(SHIPPED / "train.py")
    assert find_script(path) == Script(path, "train")
    Path("train.py").write_bytes(Path(path).read_bytes())
    assert find_script("train.py") == Script("train.py", "train")
    monkeypatch.chdir(SHIPPED)
    assert find_script("train.py") == Script("train.py", "train")


def test_another_name_is_another_script() -> None:
    Path("pretrain.py").write_bytes((SHIPPED / "train.py").read_bytes())
    assert find_script("pretrain.py") == Script("pretrain.py")
    with pytest.raises(Problems):
        find_script("nowhere.py")


def test_of_a_users_train_py_nothing_is_known(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    """Neither what it can do, nor what it needs, nor how much memory it takes."""
    started: list[str] = []
    for name in ("tokenise", "compile_ops", "write_record"):
        monkeypatch.setattr(f"neoxargs.launch.start.prepare.{name}", lambda *_: 0)
    monkeypatch.setattr(
        "neoxargs.launch.start.restarts.start", lambda launched, *_, **__: started.append(launched.words) or Ended(0)
    )
    Path("my.yml").write_text(smallest.BILLION + "te_fp8_mha: true\ndata_path: nowhere\ndialect: neox-2026\n")
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    words = ["train.py", "my.yml", "--device", "V100-16GB"]
    assert main(words) == 1
    assert "does not fit" in capsys.readouterr().err
    assert main([*words, "--force"]) == 1
    refused = capsys.readouterr().err
    pinned(refused, "[data-file-missing]")
    pinned(refused, "[not-built]")
    assert main([*words, "--dry-run", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False

    Path("train.py").write_text(THEIRS)
    assert main(words) == 0
    told = capsys.readouterr().err
    pinned(told, "[data-file-missing]")
    assert "te_fp8_mha" not in told
    assert "train.py" in started[0]
    assert main([*words, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
