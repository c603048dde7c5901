"""Nothing that a run creates is writable for every user, whatever the umask of the shell; no secret is in its files.

A text file is replaced as a whole: readers see the old or the new one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neoxargs.base.files import never_writable_for_all
from neoxargs.cli import main
from neoxargs.config.config import Config
from neoxargs.files.run_record import write_record
from neoxargs.runs.lockfile import write_lock
from neoxargs.train import rank as train
from tests.support.configure import configure
from tests.support.processes import rank_arguments, train_on_rank
from tests.support.ranks import run_ranks

SECRETS = {"WANDB_API_KEY": "hunter1", "HF_TOKEN": "hunter2", "COMET_API_KEY": "hunter3", "MLFLOW_PASSWORD": "hunter4"}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(("before", "after"), [(0, 0o002), (0o002, 0o002), (0o022, 0o022), (0o077, 0o077)])
def test_only_the_permission_of_all_others_is_removed(before, after):
    os.umask(before)
    never_writable_for_all()
    assert umask() == after


def test_deepy_and_every_rank_remove_it(monkeypatch):
    os.umask(0)
    main(["--version"])
    assert umask() == 0o002
    os.umask(0)
    monkeypatch.setattr(train, "_run", lambda program, argv: 0)
    train.run_program("train", [])
    assert umask() == 0o002


def short_run(arguments: list[str]) -> tuple[int, str, str]:
    os.umask(0)
    os.environ.update(SECRETS)
    return train_on_rank(arguments)


@pytest.mark.timeout(200)
def test_the_files_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    arguments = rank_arguments(
        tmp_path, 1, train_iters=2, save=str(folder), tensorboard_dir=str(folder / "tensorboard")
    )
    [(code, output, errors)] = run_ranks(short_run, 1, arguments)
    assert code == 0, errors
    created = [folder, *folder.rglob("*")]
    assert {"global_step2", "metrics.jsonl", "report.html", "latest"} <= {path.name for path in created}
    assert not [path for path in created if path.stat().st_mode & stat.S_IWOTH]
    assert not [path for path in created if path.is_file() and b"hunter" in path.read_bytes()]
    assert "hunter" not in output + errors + " ".join(arguments)


@pytest.mark.parametrize("write", [write_record, lambda config: write_lock(config, "train.py")])
def test_the_record_and_the_lock_file_of_a_run_are_replaced(tmp_path: Path, write: Callable[[Config], Path]) -> None:
    """Who reads the file of an earlier start meanwhile reads it to its end."""
    config = configure(f"run_dir: {tmp_path}")
    earlier = write(config).read_text()
    with write(config).open() as reader:
        write(config)
        assert reader.read() == earlier
        assert not os.path.samestat(os.fstat(reader.fileno()), write(config).stat())
    assert len(list(tmp_path.iterdir())) == 1
