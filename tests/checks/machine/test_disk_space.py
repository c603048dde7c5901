"""Checkpoints that would not fit, or that cannot be written at all, are reported before the run starts."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from neoxargs.checks.machine import disk_space
from neoxargs.cli import main
from neoxargs.config.config import Config
from neoxargs.facts import timeline
from tests.support import smallest
from tests.support.configure import smallest_run
from tests.support.snapshots import pinned

OTHER = "set save to a folder on a disk with more free space"
BYTES = "tokenizer_type: ByteLevelTokenizer\n"


def config(text: str, folder: Path) -> Config:
    """Of a run of 10 steps that saves after each."""
    interval = "" if "interval" in text else "save_interval: 1\n"
    return smallest_run(f"{BYTES}save: {folder}\n{text}{interval}")


@pytest.fixture
def told(tmp_path, monkeypatch):
    """The sentences for a disk on which this many checkpoints of the configuration fit."""

    def problems(text: str, fit: float) -> list[str]:
        made = config(text, tmp_path / "a" / "b")
        free = int(fit * timeline.checkpoint_bytes(made))
        monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
        return [f"{problem.severity}: {problem.what}; {problem.hint}" for problem in disk_space.folder_problems(made)]

    return problems


def test_no_space_for_a_single_checkpoint(told, tmp_path):
    [sentence] = told("", 0.5)
    assert sentence.startswith(f"error: save ({tmp_path}/a/b): ")
    assert " free, but one checkpoint needs about " in sentence


@pytest.mark.parametrize(
    ("text", "fit", "hint"),
    [
        ("", 10.5, None),
        ("", 9.5, f"set keep_last_n_checkpoints: 8, or {OTHER}"),
        ("keep_last_n_checkpoints: 3\n", 4.5, None),
        ("keep_last_n_checkpoints: 3\n", 3.5, f"set keep_last_n_checkpoints: 2, or {OTHER}"),
        ("save_interval: 5\n", 1.5, OTHER),
    ],
)
def test_space_for_all_checkpoints_that_the_run_keeps(told, text, fit, hint):
    found = told(text, fit)
    assert len(found) == (hint is not None)
    assert all(sentence.startswith("warning: ") and sentence.endswith(f"; {hint}") for sentence in found)


def test_bytes_of_a_checkpoint(tmp_path):
    """Bytes per parameter. fp32: 4 and 8 of Adam's moments; half precision: 2, 4 of fp32 weights, 8 of moments."""
    single, half, bare = (
        timeline.checkpoint_bytes(config(text, tmp_path))
        for text in ("precision: fp32\n", "precision: bfloat16\n", "precision: fp32\nno_save_optim: true\n")
    )
    assert (half * 12, bare * 12) == (single * 14, single * 4)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 10),
        ("checkpoint_scale: log\nsave_interval: 2\n", 5),
        ("save_interval: 3\nextra_save_iters: [3, 10]\n", 4),
        ("keep_last_n_checkpoints: 2\n", 3),
    ],
)
def test_how_many_lie_there_together(tmp_path, text, count):
    assert disk_space.checkpoints_together(config(text, tmp_path)) == count


def test_a_run_that_saves_nothing(tmp_path):
    assert disk_space.folder_problems(smallest_run(BYTES)) == []


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").touch()
    [problem] = disk_space.folder_problems(config("", tmp_path / "file" / "ckpt"))
    pinned(problem)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_of_another_user(tmp_path):
    tmp_path.chmod(0o500)
    [problem] = disk_space.folder_problems(config("", tmp_path / "ckpt"))
    assert "this user has no permission to write to" in problem.what


def test_a_read_only_file_system_is_called_that(tmp_path, monkeypatch):
    """Another user could not write there either."""
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY, f_blocks=1))
    [problem] = disk_space.folder_problems(config("", tmp_path / "ckpt"))
    assert problem.what.endswith(f"the file system of {tmp_path} is read-only")


def test_a_full_disk_is_not_called_a_long_run_only(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    [problem] = disk_space.index_problems(config("", tmp_path), remote=False)
    assert problem.hint.endswith(", or set run_dir to a folder on a disk with more free space")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
def test_a_folder_that_cannot_be_made(capsys, tmp_path, monkeypatch):
    [problem] = disk_space.folder_problems(config("", Path("/proc/x")))
    assert problem.what.startswith("save (/proc/x): ")
    assert problem.what.endswith(
        "this user has no permission to write to /proc" if os.getuid() else "files cannot be created in /proc"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("tokens.bin", "tokens.idx"):
        Path(name).touch()
    Path("a.yml").write_text(f"{smallest.YAML}{BYTES}data_path: tokens\nsave: /proc/x\nsave_interval: 1\n")
    assert main(["check", "a.yml"]) == 1
    assert f"error: {problem.what}" in capsys.readouterr().err
    assert main(["check", "a.yml", "--gpus", "1"]) == 0
    assert "/proc" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "disk", "memory", "lack"),
    [
        ("", 1e13, 1e13, None),
        ("", 1e9, 1e13, "the disk that holds run_dir (runs) has only 1 GB free"),
        ("", 1e13, 1e9, "this machine has 1 GB of memory"),
        ("pack_impl: unpacked\n", 11e9, 1e13, None),
    ],
)
def test_the_order_of_samples_has_space(tmp_path, monkeypatch, text, disk, memory, lack):
    """A billion samples take 12 GB, or 10 GB of whole documents."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=disk))
    monkeypatch.setattr(disk_space, "host_memory", lambda: memory)
    made = config(f"{text}gradient_accumulation_steps: 5e7\nrun_dir: runs\n", tmp_path)
    found = [problem.what for problem in disk_space.index_problems(made, remote=False)]
    assert [what.rpartition("but ")[2] for what in found] == [lack] * (lack is not None)
    assert list(disk_space.index_problems(made, remote=True)) == [] or disk == 1e9
