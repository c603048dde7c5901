"""`deepy data --verify`, `--count` and `--merge`."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from neoxargs.data.token_file_commands import main
from neoxargs.files.token_files import index
from neoxargs.files.token_files import writer as indexed
from tests.support.finetuning import IGNORED, token_file
from tests.support.snapshots import pinned


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()


def content(prefix: str) -> list[list[float]]:
    found = index.read(prefix, {**index.TYPES, 6: "<f4"})
    assert found and index.damage(prefix) == ""
    return [found.ids[a:b].tolist() for a, b in zip(found.begins, found.begins[1:], strict=False)]


def test_count(capsys: pytest.CaptureFixture[str]) -> None:
    token_file(Path("d/a"), [[1, 2, 3], [4, 5]], np.uint16)
    token_file(Path("d/b"), [[6] * 1000])
    assert main(["--count", "d/a", "d/b.bin"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "d/a: 5 tokens in 2 documents", "d/b: 1,000 tokens in 1 documents", "total: 1,005 tokens in 3 documents",
    ]  # fmt: skip
    assert main(["--count", "d/a.idx", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == {"d/a": {"documents": 2, "tokens": 5}}


@pytest.mark.parametrize("how", [["d"], ["d/a", "d/b"], ["--input", "d/"]])
def test_merge_joins_documents_labels_and_rewards_in_order(how: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neoxargs.files.token_files.labels.AT_ONCE", 4)
    documents = {"a": [[1, 2, 3], [4, 5]], "b": [[70000, 7], [8], [9, 9, 9, 9, 9, 9]]}
    for name, own in documents.items():
        token_file(Path("d", name), own, np.uint16 if name == "a" else np.int32)
        token_file(Path("d", f"{name}_label"), [[IGNORED, *ids[1:]] for ids in own])
        token_file(Path("d", f"{name}_reward"), [[0.5 * len(ids)] for ids in own], np.float32)
        Path("d", f"{name}.json").write_text('{"tokenizer_type": "HFTokenizer", "vocab_size": 70001}')
    assert main(["--merge", *how, "--output-prefix", "out/all"]) == 0
    both = documents["a"] + documents["b"]
    assert content("out/all") == both
    assert content("out/all_label") == [[IGNORED, *ids[1:]] for ids in both]
    assert content("out/all_reward") == [[0.5 * len(ids)] for ids in both]
    assert index.ends("out/all").tolist() == [0, 1, 2, 3, 4, 5]
    assert index.tokenised_by("out/all") == index.Tokenised("HFTokenizer", 70001, "", "", None)
    assert main(["--verify", "out/all"]) == 0


def test_merged_files_of_one_type_are_those_files_one_after_the_other() -> None:
    """Byte for byte what GPT-NeoX's merge_datasets.py writes, except that it loses the ends of documents."""
    for name, own in {"a": [[1, 2, 3], [4, 5]], "b": [[6]]}.items():
        token_file(Path("d", name), own, np.uint16)
    main(["--merge", "--input", "d", "--output-prefix", "all"])
    assert Path("all.bin").read_bytes() == struct.pack("<6H", *range(1, 7))
    whole = token_file(Path("whole"), [[1, 2, 3], [4, 5], [6]], np.uint16)
    assert Path("all.idx").read_bytes() == Path(f"{whole}.idx").read_bytes()


def test_documents_of_several_sequences_stay_together() -> None:
    with indexed.new_file(Path("d/a"), np.uint16) as writer:
        writer.add(np.arange(6, dtype=np.uint16), [2, 3, 1], [False, True, True])
    assert main(["--merge", "d/a", "d/a.idx", "--output-prefix", "same"]) == 0
    assert index.ends("same").tolist() == [0, 2, 3]
    token_file(Path("d/b"), [[1]], np.uint16)
    assert main(["--merge", "d", "--output-prefix", "all"]) == 0
    assert index.ends("all").tolist() == [0, 2, 3, 4]


@pytest.mark.parametrize("arguments", [
    ["--merge", "d"], ["--count", "d", "--output-prefix", "x"], ["--count"], ["--verify", "d", "none"],
    ["--verify", "empty"], ["--merge", "d", "--output-prefix", "d/a"],
    ["--merge", "d", "--output-prefix", "x.bin"], ["--merge", "d", "e/l", "--output-prefix", "x"],
    ["--merge", "d", "e/o", "--output-prefix", "x"],
])  # fmt: skip
def test_what_cannot_be_done(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("d/a", "e/l", "e/l_label", "e/o"):
        token_file(Path(name), [[1, 2]])
    for name, size in (("d/a", 3), ("e/o", 4)):
        Path(f"{name}.json").write_text(json.dumps({"tokenizer_type": "HFTokenizer", "vocab_size": size}))
    Path("empty").mkdir()
    assert main(arguments) == 1
    pinned(capsys.readouterr().err)
    assert not list(Path().glob("x*"))


@pytest.mark.parametrize("command", [["--verify"], ["--merge", "--output-prefix", "x"]])
@pytest.mark.parametrize("name", ["a.bin", "a.idx", "a_label.bin"])
def test_damage_is_found(command: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for file in ("a", "a_label"):
        token_file(Path("d", file), [[1, 2], [3, 4]])
    assert main(["--verify", "d"]) == 0
    assert f"d/{name}: equals its checksum" in capsys.readouterr().out
    damaged = bytearray(Path("d", name).read_bytes())
    damaged[-2] ^= 4
    Path("d", name).write_bytes(damaged)
    assert main([*command, "d"]) == 1
    assert f"d/{name} has changed since its checksum was recorded: it has the checksum" in capsys.readouterr().err
    assert main([*command, "d", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"][0]["id"] == "data-file-changed"
    assert not list(Path().glob("x*"))


def test_a_file_without_a_checksum_is_not_called_verified(capsys: pytest.CaptureFixture[str]) -> None:
    token_file(Path("d/a"), [[1, 2]])
    Path("d/a.checksums.json").unlink()
    for word in ("had no checksum to be compared with; it is recorded now", "equals its checksum"):
        assert main(["--verify", "d"]) == 0
        assert capsys.readouterr().out.splitlines() == [f"d/a.idx: {word}", f"d/a.bin: {word}"]


def test_a_truncated_file_gets_no_checksum(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("d/a", "d/b"):
        token_file(Path(name), [[1, 2], [3, 4]])
        Path(f"{name}.checksums.json").unlink()
    Path("d/a.bin").write_bytes(Path("d/a.bin").read_bytes()[:-2])
    for _ in range(2):
        assert main(["--verify", "d", "--json"]) == 1
        [problem] = json.loads(capsys.readouterr().out)["problems"]
        assert (problem["id"], problem["what"].partition(":")[0]) == ("data-file-damaged", "d/a")
    assert not Path("d/a.checksums.json").exists()


@pytest.mark.parametrize("command", ["--verify", "--count"])
@pytest.mark.parametrize(("at", "value"), [(18, 2**60), (18, 2**64 - 1), (26, 2**60)])
def test_numbers_that_no_index_can_hold(command: str, at: int, value: int, capsys: pytest.CaptureFixture[str]) -> None:
    token_file(Path("a"), [[1, 2], [3, 4]])
    Path("a.checksums.json").unlink()
    index = bytearray(Path("a.idx").read_bytes())
    struct.pack_into("<Q", index, at, value)
    Path("a.idx").write_bytes(index)
    assert main([command, "a"]) == 1
    pinned(capsys.readouterr().err)
