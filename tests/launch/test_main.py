"""One `deepy train.py`: its files are read and resolved once, whatever is asked of the result."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neoxargs.cli import main
from neoxargs.files.token_files.index import digest
from neoxargs.launch.start.run import Ended
from tests.support import smallest
from tests.support.finetuning import token_file

MODEL = smallest.YAML + "tokenizer_type: ByteLevelTokenizer\ndata_path: tokens\n"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often configurations are read, merged and derived, and runs started; a folder with all that one needs."""
    counted: Counter[str] = Counter()

    def count(module: str, name: str) -> None:
        function: Callable[..., Any] = getattr(__import__(module, fromlist=[name]), name)

        def counting(*arguments: Any, **options: Any) -> Any:
            counted[name] += 1
            return function(*arguments, **options)

        monkeypatch.setattr(f"{module}.{name}", counting)

    count("neoxargs.resolve.yaml.read", "_decode")
    count("neoxargs.runs.run_spec", "read_draft")
    count("neoxargs.runs.run_spec", "before_ranks")
    count("neoxargs.runs.run_spec", "resources")
    monkeypatch.setattr("neoxargs.launch.start.prepare.compile_ops", lambda *_: 0)
    monkeypatch.setattr("neoxargs.launch.start.restarts.start", lambda *_, **__: counted.update(["start"]) or Ended(0))
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.chdir(tmp_path)
    for name in ("tokens.bin", "tokens.idx"):
        Path(name).touch()
    Path("my.yml").write_text(MODEL)
    Path("more.yml").write_text("eval_interval: 7\n")
    return counted


ONCE = {"_decode": 2, "read_draft": 1, "before_ranks": 1, "resources": 1}


@pytest.mark.parametrize("more", [[], ["--device", "H200"], ["--force"]])
def test_a_launch_resolves_its_files_once(calls: Counter[str], more: list[str]) -> None:
    """The plan's verdict, the summary and the command are of one and the same run."""
    assert main(["train.py", "my.yml", "more.yml", *more]) == 0
    assert calls == ONCE | {"start": 1}


@pytest.mark.parametrize("form", ["--dry-run", "--emit=runner", "--emit=sbatch", "--dry-run --json"])
def test_so_does_what_only_shows_it(calls: Counter[str], form: str) -> None:
    assert main(["train.py", "my.yml", "more.yml", *form.split()]) == 0
    assert calls == ONCE


def test_what_is_shown_for_another_machine_does_not_depend_on_the_packages_of_this_one(
    calls: Counter[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The guides show such commands, and `deepy docs` writes the same pages without torch."""
    shown = {}
    for missing in (False, True):
        monkeypatch.setattr("neoxargs.checks.machine.packages.is_missing", lambda _, missing=missing: missing)
        for more in ([], ["--gpus=4"]):
            assert main(["train.py", "my.yml", "--emit=megatron", *more]) == 0
            shown[missing, bool(more)] = capsys.readouterr()
    assert shown[True, True] == shown[False, True]
    assert "training needs torch" in shown[True, False].err


@pytest.mark.parametrize(("ids", "told"), [([1, 2, 4], True), ([1, 2, 3], False)])
def test_a_text_that_has_changed_since_the_checkpoint_is_told(
    ids: list[int],
    told: bool,
    tmp_path: Path,
    calls: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The launcher tokenises it again, after all other checks."""
    Path("a.txt").touch()
    tokens = str(tmp_path / "runs/data/text")
    Path("my.yml").write_text(
        smallest.YAML + "tokenizer_type: ByteLevelTokenizer\ntext_path: a.txt\nrun_dir: runs\nload: ."
    )
    Path(tokens).parent.mkdir(parents=True)
    token_file(Path(tokens), [[1, 2, 3]])
    Path("global_step1").mkdir()
    Path("global_step1/data.json").write_text(json.dumps({"runs/data/text": digest(tokens)}))

    def tokenise(*_: object) -> int:
        token_file(Path(tokens), [ids])
        return 0

    monkeypatch.setattr("neoxargs.launch.start.prepare.tokenise", tokenise)
    assert main(["train.py", "my.yml"]) == 0
    assert ("the contents of a.txt have changed since the checkpoint" in capsys.readouterr().err) == told


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_disk_that_fills_up_before_the_ranks_start_is_a_problem_of_run_dir(
    calls: Counter[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def full(*_: object) -> int:
        raise OSError(number, os.strerror(number), "runs/launch.json")

    monkeypatch.setattr("neoxargs.launch.start.prepare.prepare", full)
    assert main(["train.py", "my.yml", "--force"]) == 1
    told = capsys.readouterr().err
    assert "error: run_dir (runs): runs/launch.json cannot be written: " in told and "[folder-not-writable]" in told
    assert not list(Path("runs").glob("*.lock"))


def test_a_program_that_may_not_be_executed_is_not_blamed_on_the_disk(
    calls: Counter[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "/usr/bin/launcher")

    monkeypatch.setattr("neoxargs.launch.start.prepare.prepare", refused)
    assert main(["train.py", "my.yml", "--force"]) == 1
    told = capsys.readouterr().err
    assert "/usr/bin/launcher" in told and "permission denied" in told and "run_dir" not in told
