"""Damage of a checkpoint's files is found, whatever bytes it concerns; older and foreign checkpoints are accepted."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from neoxargs.base.problems import Problems
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.folder import Written, damage, verify
from neoxargs.train.checkpoint import commit
from tests.support.snapshots import pinned

SIZES = {"model.pt": 5000, "sub/optimizer.pt": 9000, "config.json": 40, "empty": 0}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    part = commit.begin(tmp_path, 7)
    (part / "sub").mkdir()
    for name, size in SIZES.items():
        (part / name).write_bytes(random.Random(name).randbytes(size))
    return commit.commit(tmp_path, 7)


def flip(file: Path, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


def test_an_unchanged_checkpoint_is_complete(checkpoint):
    read: list[int] = []
    assert damage(checkpoint) == verify(checkpoint, advance=read.append) == ""
    assert sorted(read) == sorted(SIZES.values())


@pytest.mark.parametrize("name", ["model.pt", "sub/optimizer.pt", "config.json"])
def test_a_flipped_bit_is_found(checkpoint, name):
    for bit in random.Random(1).sample(range(8 * SIZES[name]), 20):
        flip(checkpoint / name, bit)
        assert damage(checkpoint) == ""  # only the checksum shows it
        assert verify(checkpoint).startswith(f"{name} has the checksum ")
        flip(checkpoint / name, bit)
    assert verify(checkpoint) == ""


def test_every_flipped_bit_of_the_list_itself_is_found(checkpoint):
    file = checkpoint / checkpoint_folder.FILES
    for bit in range(8 * file.stat().st_size):
        flip(file, bit)
        assert verify(checkpoint), f"bit {bit}: {file.read_bytes()!r}"
        flip(file, bit)


def test_a_missing_file_and_a_wrong_size_need_no_checksum(checkpoint):
    (checkpoint / "model.pt").write_bytes(b"x")
    assert damage(checkpoint) == verify(checkpoint) == "model.pt has 1 bytes instead of 5000"
    (checkpoint / "model.pt").unlink()
    assert damage(checkpoint) == verify(checkpoint) == "model.pt is missing"
    assert damage(checkpoint.with_name("global_step8")) == "it does not exist"


def test_an_empty_folder_is_not_another_programs_checkpoint(tmp_path):
    (tmp_path / "global_step3" / "sub").mkdir(parents=True)
    assert damage(tmp_path / "global_step3") == verify(tmp_path / "global_step3") == "it is empty"
    assert checkpoint_folder.newest(tmp_path) is None
    (tmp_path / "global_step2").mkdir()
    (tmp_path / "global_step2" / "mp_rank_00_model_states.pt").touch()
    assert checkpoint_folder.newest(tmp_path) == tmp_path / "global_step2"


def test_every_file_is_in_one_share_of_ranks_and_shares_are_even(checkpoint):
    shares: list[list[int]] = [[] for _ in range(3)]
    for number, share in enumerate(shares):
        assert verify(checkpoint, (number, 3), share.append) == ""
    assert sorted(map(sum, shares)) == [40, 5000, 9000]
    flip(checkpoint / "config.json", 0)
    assert [bool(verify(checkpoint, (number, 3))) for number in range(3)].count(True) == 1


def test_sizes_alone_are_an_older_format(checkpoint):
    (checkpoint / checkpoint_folder.FILES).write_text(json.dumps(SIZES))
    assert damage(checkpoint) == verify(checkpoint) == ""
    (checkpoint / "model.pt").write_bytes(b"")
    pinned(verify(checkpoint))


def test_a_list_that_is_missing_is_damage_of_our_own_checkpoints_only(checkpoint):
    (checkpoint / checkpoint_folder.FILES).unlink()
    assert damage(checkpoint) == verify(checkpoint) == ""
    (checkpoint / "layout-mp_rank_00.json").write_text("{}")
    assert damage(checkpoint) == verify(checkpoint) == "files.json is missing"


def test_a_file_that_cannot_be_read_is_damage(checkpoint, monkeypatch):
    def fail(file: Path) -> None:
        raise OSError(5, "Input/output error", str(file))

    monkeypatch.setattr(checkpoint_folder, "digest_of", fail)
    pinned(verify(checkpoint))


def write(root: Path, iteration: int, record: str | None) -> Path:
    part = commit.begin(root, iteration)
    (part / "model.pt").touch()
    if record is not None:
        (part / checkpoint_folder.RUN).write_text(record)
    return commit.commit(root, iteration)


def ordered(folder: Path) -> list[int]:
    return [checkpoint_folder.iteration_of(path) for path in checkpoint_folder.newest_first(folder)]


@pytest.mark.parametrize("record", [None, '{"job": ""}', "not JSON"])
def test_without_runs_earlier_iterations_come_before_later_ones(tmp_path, record):
    """As in checkpoints of other programs and older ones."""
    for iteration in (1, 2, 3):
        write(tmp_path, iteration, record)
    assert ordered(tmp_path) == [3, 2, 1]
    (tmp_path / "latest").write_text("global_step2")
    assert ordered(tmp_path) == [2, 1, 3]
    (tmp_path / "latest").write_text("global_step9")
    assert ordered(tmp_path) == [3, 2, 1]


def test_a_run_that_began_again_earlier_does_not_continue_what_was_later(tmp_path):
    """Whatever the times of the files. 10 has no run; then come a, b from 20 of a, and c from 25 of b."""
    write(tmp_path, 10, None)
    for run, start, iterations in (("a", 10, (20, 30, 40)), ("b", 20, (25, 35)), ("c", 25, (28, 45))):
        for iteration in iterations:
            write(tmp_path, iteration, Written(run, start).to_json())
    assert ordered(tmp_path) == [45, 28, 25, 20, 10, 40, 35, 30]
    (tmp_path / "latest").write_text("global_step35")
    assert ordered(tmp_path) == [35, 25, 20, 10, 45, 40, 30, 28]


def test_a_format_that_is_not_known_is_neither_damage_nor_skipped(tmp_path):
    """Also if the list of files, or another file, has a form that is not known."""
    write(tmp_path, 1, Written("a").to_json())
    newer = write(tmp_path, 2, Written("a", format=checkpoint_folder.FORMAT + 1).to_json())
    (newer / checkpoint_folder.FILES).write_text("another form")
    refusal = r"global_step2 has checkpoint format 2, but .* up to 1 \[checkpoint-format-newer\]"
    for read in (damage, verify, lambda path: checkpoint_folder.newest(path.parent)):
        with pytest.raises(Problems, match=refusal):
            read(newer)


def test_the_format_of_older_and_foreign_checkpoints_is_0(tmp_path):
    for number, record in enumerate((None, '{"job": "one.5"}', "[]", "{}", '{"format": "x", "job": ""}')):
        assert checkpoint_folder.written_by(write(tmp_path, number, record)).format == 0
    assert checkpoint_folder.written_by(tmp_path / "global_step1") == Written(job="one.5", format=0)


def test_files_of_other_programs_are_compared_with_torch_s_checksums(tmp_path):
    folder = tmp_path / "global_step3"
    folder.mkdir()
    file = folder / "mp_rank_00_model_states.pt"
    torch.save({"a": torch.ones(100), "b": torch.zeros(200)}, file)
    torch.save({"a": torch.ones(1)}, folder / "older.pt", _use_new_zipfile_serialization=False)
    assert checkpoint_folder.verify(folder) == ""
    flip(file, 8 * file.read_bytes().index(bytes([0, 0, 128, 63] * 100)) + 999)
    assert checkpoint_folder.damage(folder) == ""
    pinned(checkpoint_folder.verify(folder))
