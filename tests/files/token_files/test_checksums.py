"""Checksums of token files: recorded when they are written or first read, and compared whenever they may differ."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from neoxargs.files.checkpoints.checksums import digest_of
from neoxargs.files.token_files import checksums, index
from neoxargs.files.token_files.checksums import changes, examine, recorded
from tests.support.finetuning import token_file
from tests.support.snapshots import pinned

#: More than the file has.
ALL = 1 << 30
DOCUMENTS = [[7, 8, 9], [1] * 5000, [383, 0]]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return token_file(tmp_path / "folder" / "text", DOCUMENTS)


def foreign(prefix: str) -> str:
    """Let a token file be one of another program, which records nothing."""
    checksums.record_file(prefix).unlink()
    return prefix


def told(prefix: str, everything: bool = False) -> list[str]:
    """Return the files with a problem."""
    return [each.file for each in examine([prefix], everything) if each.problem]


def damage(file: str, at: float, keep_time: bool = True) -> None:
    """Change one bit at a fraction of a file; its size stays the same, and its modification time is set back."""
    path, before = Path(file), os.stat(file)
    content = bytearray(path.read_bytes())
    content[min(int(at * len(content)), len(content) - 1)] ^= 1
    path.write_bytes(content)
    if keep_time:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_what_is_recorded_of_a_written_file_is_what_reading_it_gives(prefix: str) -> None:
    made = recorded(prefix)
    assert {suffix: record.digest for suffix, record in made.items()} == {
        suffix: digest_of(Path(prefix + suffix)) for suffix in (".bin", ".idx")
    }
    assert made[".bin"].ids == ((0, 5004), (383, 5003))
    foreign(prefix)
    assert not told(prefix)
    # Written, they count as not compared; the first reading compares them.
    assert all(record.compared for record in recorded(prefix).values())
    assert {suffix: record._replace(compared=None) for suffix, record in recorded(prefix).items()} == made


@pytest.mark.parametrize("suffix", [".idx", ".bin"])
@pytest.mark.parametrize("at", [0, 0.2, 0.5, 0.9, 1])
@pytest.mark.parametrize("read_before", [False, True])
def test_damage_at_every_place_is_found(prefix: str, suffix: str, at: float, read_before: bool) -> None:
    if read_before:
        assert not told(prefix)
    damage(prefix + suffix, at)
    (problem,) = changes(prefix, ALL).problems
    assert problem.what.startswith(f"{prefix}{suffix} has changed since its checksum was recorded: it has the checksum")
    assert problem.hint.endswith(f"if it was replaced on purpose, delete {prefix}.checksums.json")
    assert told(prefix) == [prefix + suffix]
    # It is still told: nothing of it was recorded.
    assert told(prefix) == [prefix + suffix]


def test_a_foreign_file_is_recorded_once_and_compared_from_then_on(prefix: str) -> None:
    assert [(each.is_new, each.problem) for each in examine([foreign(prefix)])] == [(True, None)] * 2
    assert not any(each.is_new for each in examine([prefix]))
    damage(prefix + ".bin", 0.5)
    assert told(prefix) == [prefix + ".bin"]


def test_a_file_is_read_once_until_it_may_have_changed(prefix: str) -> None:
    read: list[int] = []
    assert [sum(read) for _ in range(2) if list(examine([prefix], read=read.append))] == [
        sum(os.path.getsize(prefix + suffix) for suffix in (".idx", ".bin"))
    ] * 2
    os.utime(prefix + ".bin")
    assert changes(prefix, 0).unread == os.path.getsize(prefix + ".bin")
    assert not told(prefix)
    assert changes(prefix, 0) == ([], 0, 0)


def test_verify_reads_what_nothing_shows_to_have_changed(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a disk returns other bytes than were written to it: no time changes."""
    assert not told(prefix)
    times = checksums._times(prefix + ".bin")
    damage(prefix + ".bin", 0.5)
    monkeypatch.setattr(checksums, "_times", lambda file: times if file.endswith(".bin") else (0, 0))
    assert told(prefix, everything=True) == [prefix + ".bin"]


def test_other_sizes_need_no_reading(prefix: str) -> None:
    with open(prefix + ".bin", "ab") as file:
        file.write(b"1234")
    (problem,) = changes(prefix, 0).problems
    pinned(problem)


def test_large_files_are_not_read_by_a_check(prefix: str) -> None:
    size = os.path.getsize(prefix + ".bin")
    damage(prefix + ".bin", 0.5)
    assert changes(prefix, size - 1) == ([], size, os.path.getsize(prefix + ".idx"))


def test_a_folder_may_be_moved_copied_and_renamed(prefix: str, tmp_path: Path) -> None:
    assert not told(prefix)
    shutil.copytree(tmp_path / "folder", tmp_path / "copy")
    (tmp_path / "folder").rename(tmp_path / "moved")
    assert changes(str(tmp_path / "moved/text"), 0) == ([], 0, 0)
    copy = str(tmp_path / "copy/text")
    damage(copy + ".bin", 0.5)
    assert told(copy) == [copy + ".bin"]


def test_a_folder_that_cannot_be_written_to(prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write = checksums.replace_text

    def refuse(path: Path, text: str) -> None:
        if path.parent == tmp_path / "folder":
            raise PermissionError(13, "Permission denied", str(path))
        write(path, text)

    monkeypatch.setattr(checksums, "replace_text", refuse)
    assert not told(prefix)
    assert changes(prefix, 0) == ([], 0, 0)  # recorded for the user, although the record beside them does not say it
    damage(prefix + ".bin", 0.5)
    assert told(prefix) == [prefix + ".bin"]
    foreign(prefix)
    assert told(prefix) == [prefix + ".bin"]
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").touch()  # nor can the cache
    assert [each.is_new for each in examine([prefix]) if not each.problem] == [True, True]
    assert recorded(prefix) == {}


def test_a_new_token_file_replaces_the_record(prefix: str) -> None:
    damage(prefix + ".bin", 0.5)
    assert told(prefix)
    token_file(Path(prefix), [[1, 2]])
    assert not told(prefix)


@pytest.mark.parametrize("content", ["", "{", "[]", '{".bin": 3}', '{".bin": {"bytes": "x", "crc32": "y"}}'])
def test_an_unreadable_record_counts_as_none(prefix: str, content: str) -> None:
    checksums.record_file(prefix).write_text(content)
    assert recorded(prefix) == {}
    assert [each.is_new for each in examine([prefix])] == [True, True]


def test_a_record_of_files_that_were_written_meanwhile_is_kept(prefix: str) -> None:
    """Another run compares the old file while `deepy data` writes a new one."""
    outcomes = examine([prefix])
    next(outcomes)
    token_file(Path(prefix), [[5, 5, 5]])
    made = recorded(prefix)
    list(outcomes)
    assert recorded(prefix)[".idx"] == made[".idx"]
    assert not told(prefix)


@pytest.mark.parametrize("at", range(0, 82, 3))
def test_an_index_that_contradicts_itself_is_damaged_without_a_record(tmp_path: Path, at: int) -> None:
    prefix = foreign(token_file(tmp_path / "text", [[1, 2, 3], [4, 5]]))
    original = Path(prefix + ".idx").read_bytes()
    assert index.damage(prefix) == ""
    damage(prefix + ".idx", at / len(original))
    if 9 <= at < 17 or at == 66:  # the version, which other checks compare, and an end of a document that could be one
        return
    assert index.damage(prefix) or index.read(prefix) is None


def test_an_index_without_ends_of_documents_is_one_of_merge_datasets(tmp_path: Path) -> None:
    prefix = token_file(tmp_path / "text", [[1, 2, 3], [4, 5]])
    file = Path(prefix + ".idx")
    head = list(index.HEADER.unpack(file.read_bytes()[: index.HEADER.size]))
    head[-1] = 1
    file.write_bytes(index.HEADER.pack(*head) + file.read_bytes()[index.HEADER.size : -16])
    assert index.damage(prefix) == ""


def test_ids_are_found_across_blocks_and_in_rewards_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neoxargs.files.checkpoints.checksums.BLOCK", 64)
    prefix = foreign(token_file(tmp_path / "text", [[50] * 100, [-3, 60], [50] * 70]))
    (_, tokens) = examine([prefix])
    assert tokens.record.ids == ((-3, 100), (60, 101))
    problem = checksums.first_beyond(prefix, tokens.record.ids, rows=60)
    assert problem
    pinned(problem)
    low = checksums.first_beyond(prefix, tokens.record.ids, rows=61)
    assert low
    pinned(low)
    assert not checksums.first_beyond(prefix, tokens.record.ids, rows=61, least=-100)
    rewards = token_file(tmp_path / "reward", [[0.5], [1.0]], np.float32)
    assert json.loads(checksums.record_file(rewards).read_text())[".bin"].keys() == {"bytes", "crc32"}
