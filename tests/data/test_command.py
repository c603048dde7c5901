"""Token files from text: they read back equal, do not depend on the number of workers, and are never partial."""

import errno
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, pairwise
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import zstandard

from neoxargs.base.problems import Problems, render
from neoxargs.data import command, encode, parallel, text_files, token_file_commands
from neoxargs.data.chat import command as chat_command
from neoxargs.data.encode import Recipe
from neoxargs.data.tokenizer import build_tokenizer
from neoxargs.files.token_files import writer as indexed
from tests.support.finetuning import token_file
from tests.support.paths import ROOT
from tests.support.refused import refused
from tests.support.snapshots import pinned

BYTES = Recipe("ByteLevelTokenizer")
#: What is written for the prefix `data`.
FILES = ["data.bin", "data.checksums.json", "data.idx", "data.json"]
TO_DATA = ("--tokenizer-type=ByteLevelTokenizer", "--output-prefix=data")
DOCUMENTS = ["first, naïve\n", "second 日本語", "third\r\nwith lines\n"]


@pytest.fixture(scope="module")
def megatron():
    """megatron-core's own reader and writer; importing it warns about packages that only GPUs need."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import indexed_dataset

        return indexed_dataset


def read_back(megatron, prefix: Path) -> list[str]:
    """Return the documents of a token file as text."""
    tokens, tokenizer = megatron.IndexedDataset(str(prefix)), build_tokenizer(BYTES)
    bounds = tokens.document_indices
    documents = [np.concatenate([tokens[i] for i in range(a, b)]) for a, b in pairwise(bounds)]
    assert all(ids[-1] == tokenizer.eod for ids in documents)
    return [tokenizer.detokenize(ids.tolist()) for ids in documents]


def leave(_chunk) -> None:
    """Stand-in for a worker that the system kills because memory is short."""
    os._exit(9)


def lines(documents) -> bytes:
    return "".join(json.dumps({"text": d, "meta": 1}) + "\n" for d in documents).encode()


def write_formats(folder: Path) -> dict[str, Path]:
    files = {name: folder / name for name in ("a.txt", "b.txt", "c.txt")}
    for path, document in zip(files.values(), DOCUMENTS, strict=True):
        path.write_bytes(document.encode())
    contents = {
        "d.jsonl": lines(DOCUMENTS),
        "e.jsonl.zst": zstandard.compress(lines(DOCUMENTS[:2])) + zstandard.compress(lines(DOCUMENTS[2:])),
        "f.jsonl.gz": gzip.compress(lines(DOCUMENTS)),
    }
    for name, content in contents.items():
        files[name] = folder / name
        files[name].write_bytes(content)
    return files


@pytest.mark.parametrize("names", [("a.txt", "b.txt", "c.txt"), ("d.jsonl",), ("e.jsonl.zst",), ("f.jsonl.gz",)])
def test_every_format_reads_back_equal(tmp_path, megatron, names) -> None:
    files = write_formats(tmp_path)
    summary = command.build([str(files[name]) for name in names], BYTES, tmp_path / "out" / "data")
    assert read_back(megatron, tmp_path / "out" / "data") == DOCUMENTS
    assert summary.documents == 3
    assert summary.text_bytes == sum(len(d.encode()) for d in DOCUMENTS)
    assert summary.tokens == summary.text_bytes + 3


def test_a_folder_is_read_in_order_without_hidden_and_foreign_files(tmp_path, megatron) -> None:
    for name, content in {"b.txt": "2", "a/z.md": "1", ".git/x.txt": "no", "image.png": "no", "c.jsonl": ""}.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    command.build([str(tmp_path / "in")], BYTES, tmp_path / "data")
    assert read_back(megatron, tmp_path / "data") == ["1", "2"]


def test_patterns_and_repeats(tmp_path) -> None:
    files = write_formats(tmp_path)
    pattern, named = str(tmp_path / "?.txt"), str(files["b.txt"])
    assert text_files.find([named, pattern]) == [files["b.txt"], files["a.txt"], files["c.txt"]]


def test_files_that_are_not_tokenised_are_told(tmp_path) -> None:
    # The first two are read.
    for name in ("a.txt", "e.JSONL", "b.jsonl.xz", "c.yml", "d.yml", "Makefile", ".hidden"):
        (tmp_path / name).write_text("text\n")
    (tmp_path / "link").symlink_to(tmp_path.parent, target_is_directory=True)
    told = [problem.what for problem in text_files.left_out([str(tmp_path), str(tmp_path / "a.txt")])]
    pinned(told[0])
    assert sorted(told[1].partition(": ")[2].replace(" and ", ", ").split(", ")) == [
        ".xz (1)", ".yml (2)", "links to folders (1)", "no extension (1)",
    ]  # fmt: skip
    assert not list(text_files.left_out([str(tmp_path / "a.txt"), text_files.STDLIB]))


def test_the_librarys_source_is_the_same_every_time_and_about_ten_megabytes() -> None:
    found = text_files.find([text_files.STDLIB])
    assert found == text_files.find([text_files.STDLIB]) and found == sorted(found)
    assert 5e6 < sum(f.stat().st_size for f in found) < 20e6
    assert not any({"site-packages", "test"} & set(f.parts) for f in found)


def test_paragraph_lists_other_keys_and_empty_documents(tmp_path, megatron) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"body": ["one", "two"]}\n\n{"body": ""}\n{"body": "three"}\n')
    command.build([str(path)], Recipe("ByteLevelTokenizer", json_key="body"), tmp_path / "data")
    assert read_back(megatron, tmp_path / "data") == ["one\n\ntwo", "three"]


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        ('{"text": "first"}\n{"text": "second"}\n', ["first", "second"]),
        ('{"text": "only"}\n', ["only"]),
        ('{"name": "settings"}', ['{"name": "settings"}']),
        ('{\n "text": "pretty"\n}\n', ['{\n "text": "pretty"\n}\n']),
    ],
)
def test_a_json_file_with_one_object_per_line_is_read_as_json_lines(tmp_path, megatron, content, documents) -> None:
    (tmp_path / "x.json").write_text(content)
    command.build([str(tmp_path / "x.json")], BYTES, tmp_path / "data")
    assert read_back(megatron, tmp_path / "data") == documents


@pytest.mark.parametrize("name", ["x.ndjson", "x.jsonlines", "x.txt", "x", "x.JSONL", "X.JSON.GZ", "x.json.zst"])
def test_json_lines_with_other_endings_are_read_as_json_lines(tmp_path, megatron, name) -> None:
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(Path(name).suffix.lower(), bytes)
    (tmp_path / name).write_bytes(pack(lines(DOCUMENTS)))
    command.build([str(tmp_path / name)], BYTES, tmp_path / "data")
    assert read_back(megatron, tmp_path / "data") == DOCUMENTS


def test_text_that_begins_like_json_stays_text(tmp_path) -> None:
    for name, content in {"x.txt": '{"a": 1}\n{"b": 2}\n', "x.py": '{"text": "a"}\n', "y.txt": "{text\n"}.items():
        (tmp_path / name).write_text(content)
        assert not text_files.is_json_lines(tmp_path / name, "text"), name


def test_a_long_file_is_one_document_in_sequences_cut_at_line_ends(tmp_path, megatron) -> None:
    document = "".join(f"line {i} é\n  indented\n\n" for i in range(3000))
    (tmp_path / "long.txt").write_text(document)
    summary = command.build([str(tmp_path / "long.txt")], BYTES, tmp_path / "data")
    assert summary.documents == 1 and summary.sequences > 10
    assert read_back(megatron, tmp_path / "data") == [document]
    for raw in list(text_files.documents([tmp_path / "long.txt"]))[1:]:
        assert document.encode()[raw.start - 1] == ord("\n")
        assert document.encode()[raw.start] not in b" \n"


def test_a_long_line_is_left_whole(tmp_path) -> None:
    (tmp_path / "long.txt").write_text("é" * 20000)
    assert len(list(text_files.documents([tmp_path / "long.txt"]))) == 1


def test_parallel_equals_serial(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(parallel, "CHUNK_BYTES", 5000)
    path = tmp_path / "x.jsonl"
    path.write_bytes(lines(f"document {i} " * (i % 40) for i in range(400)))
    results = [command.build([str(path)], BYTES, tmp_path / str(n), workers=n) for n in (1, 2)]
    assert results[0] == results[1] and results[0].documents == 390
    for ending in (".bin", ".idx", ".json"):
        assert (tmp_path / f"1{ending}").read_bytes() == (tmp_path / f"2{ending}").read_bytes()


@pytest.mark.parametrize("stored", [np.uint16, np.int32])
def test_the_files_are_megatrons_byte_by_byte(tmp_path, megatron, stored) -> None:
    documents = [[[1, 2, 3], [4]], [[5] * 7], [[256, 0]]]
    theirs = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=stored)
    with indexed.new_file(tmp_path / "ours", stored) as ours:
        for document in documents:
            flat, lengths = list(chain(*document)), [len(sequence) for sequence in document]
            theirs.add_document(flat, lengths)
            ours.add(np.array(flat, stored), lengths, [False] * (len(lengths) - 1) + [True])
    theirs.finalize(str(tmp_path / "theirs.idx"))
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"ours{ending}").read_bytes() == (tmp_path / f"theirs{ending}").read_bytes()


def test_large_vocabularies_take_four_bytes(tmp_path, megatron) -> None:
    assert encode.stored_type(65499) is megatron.DType.optimal_dtype(65499) is np.uint16
    assert encode.stored_type(65500) is megatron.DType.optimal_dtype(65500) is np.int32


def test_entropy_is_that_of_the_token_frequencies(tmp_path) -> None:
    (tmp_path / "x.txt").write_text("aabb")
    summary = command.build(
        [str(tmp_path / "x.txt")], Recipe("ByteLevelTokenizer", append_eod=False), tmp_path / "data"
    )
    assert summary.tokens == 4
    assert summary.unigram_entropy == pytest.approx(np.log(2))
    assert command.summary_of(tmp_path / "data") == summary


def if_missing(text, recipe, prefix) -> command.Summary:
    """Do what `--if-missing` does."""
    return command.up_to_date([str(text)], recipe, prefix) or command.build([str(text)], recipe, prefix)


class TestOnFirstUse:
    def test_made_once_and_again_when_the_text_or_the_recipe_changes(self, tmp_path) -> None:
        path, prefix = tmp_path / "x.txt", tmp_path / "data"
        path.write_text("one")
        first = if_missing(path, BYTES, prefix)
        made = (tmp_path / "data.bin").stat().st_ino
        assert if_missing(path, BYTES, prefix) == first
        assert (tmp_path / "data.bin").stat().st_ino == made
        path.write_text("other")
        assert if_missing(path, BYTES, prefix).tokens == 6
        assert if_missing(path, Recipe("CharLevelTokenizer"), prefix).vocab_size == 512

    def test_a_missing_index_counts_as_missing(self, tmp_path) -> None:
        (tmp_path / "x.txt").write_text("one")
        command.build([str(tmp_path / "x.txt")], BYTES, tmp_path / "data")
        (tmp_path / "data.idx").unlink()
        if_missing(tmp_path / "x.txt", BYTES, tmp_path / "data")
        assert indexed.exists(tmp_path / "data")


class TestWholeOrNotAtAll:
    def test_a_failed_build_leaves_the_old_file_and_nothing_else(self, tmp_path) -> None:
        path, prefix = tmp_path / "x.jsonl", tmp_path / "out" / "data"
        path.write_bytes(lines(DOCUMENTS))
        before = command.build([str(path)], BYTES, prefix)
        path.write_bytes(lines(DOCUMENTS) + b"broken\n")
        with pytest.raises(Problems):
            command.build([str(path)], BYTES, prefix)
        assert command.summary_of(prefix) == before
        assert sorted(p.name for p in prefix.parent.iterdir()) == FILES

    @pytest.mark.parametrize(("how", "left"), [(signal.SIGTERM, 0), (signal.SIGKILL, 2)])
    def test_a_killed_build_leaves_nothing_under_the_final_names(self, tmp_path, how, left) -> None:
        """A pipe as input keeps the build waiting for text until it is killed."""
        pipe = tmp_path / "x.jsonl"
        os.mkfifo(pipe)
        regular = tmp_path / "a.jsonl"
        regular.write_bytes(lines(["some words"] * parallel.CHUNK_DOCUMENTS))  # one chunk is written before the pipe
        program = (
            "import sys; from pathlib import Path; from neoxargs.data import command, text_files\n"
            "text_files.find = lambda texts: [Path(t) for t in texts]\nsys.exit(command.main(sys.argv[1:]))"
        )
        (tmp_path / "out").mkdir()
        arguments = [regular, pipe, "--tokenizer-type", "ByteLevelTokenizer", "--output-prefix", tmp_path / "out/data"]
        process = subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)])
        try:
            end = time.monotonic() + 200
            while not any((tmp_path / "out").glob(".data.bin.*.part")):
                assert time.monotonic() < end
                time.sleep(0.02)
            process.send_signal(how)
            process.wait(timeout=200)
        finally:
            process.kill()
            process.wait()
        names = [p.name for p in (tmp_path / "out").iterdir()]
        assert len(names) == left and all(name.endswith((".part", ".lock")) for name in names)
        assert command.main([str(regular), *map(str, arguments[2:])]) == 0
        assert sorted(p.name for p in (tmp_path / "out").iterdir()) == FILES

    def test_a_dead_worker_is_an_error_not_a_wait(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr(parallel, "_work", leave)
        with pytest.raises(BrokenProcessPool, match="terminated abruptly"):
            list(encode.encode([text_files.Raw("x", 0, 1)], BYTES, workers=2))


HOLD = (
    "import sys; from pathlib import Path; from neoxargs.data.in_use import locked\n"
    + """\
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
)


class TestTwoCommandsAtOnce:
    @pytest.fixture
    def other(self, tmp_path, monkeypatch):
        """Another process that writes `data`."""
        monkeypatch.chdir(tmp_path)
        Path("x.txt").write_text("text")
        Path("x.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
        token_file(Path("a"), [[1, 2]])
        words, environ = [sys.executable, "-c", HOLD, "data"], {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "held\n"
            yield process
            process.kill()

    @pytest.mark.parametrize(
        ("main", "words"),
        [
            (command.main, ("x.txt", *TO_DATA)),
            (chat_command.main, ("x.jsonl", *TO_DATA)),
            (token_file_commands.main, ("--merge", "a", TO_DATA[-1])),
        ],
    )
    def test_the_second_one_is_refused(self, other, capsys, main, words) -> None:
        assert main([*words]) == 1
        shown = capsys.readouterr().err.replace(f"{other.pid} on {os.uname().nodename}", "PID on HOST")
        pinned(re.sub(r"since .{19} and was last active [0-9]+ s", "since TIME and was last active 0 s", shown))
        assert sorted(path.name for path in Path().glob("*data*")) == ["data.lock"]
        assert command.main(["x.txt", TO_DATA[0], "--output-prefix=other"]) == 0

    def test_a_killed_one_is_not_in_the_way(self, other) -> None:
        other.kill()
        other.wait()
        assert Path("data.lock").exists() and command.main(["x.txt", *TO_DATA]) == 0
        assert indexed.exists(Path("data")) and not Path("data.lock").exists()

    def test_a_run_that_tokenises_text_waits_for_the_files(self, other, capsys, monkeypatch) -> None:
        def finish(_seconds: float) -> None:
            command.build(["x.txt"], BYTES, Path("data"))
            other.communicate("")

        monkeypatch.setattr("neoxargs.data.in_use.time", Mock(sleep=finish))
        assert command.main(["x.txt", *TO_DATA, "--if-missing"]) == 0
        shown = capsys.readouterr()
        assert shown.err.startswith("waiting: --output-prefix (data) is in use: ")
        assert shown.out.startswith("data is up to date: ")


class TestProblems:
    def what(self, *texts, recipe=BYTES, workers=None) -> str:
        problems = refused(command.build, [str(t) for t in texts], recipe, Path(self.folder, "data"), workers)
        return render(problems)

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path

    def test_everything_that_is_missing_at_once(self) -> None:
        (self.folder / "empty").mkdir()
        pinned(self.what("absent.txt", self.folder / "*.txt", self.folder / "empty"))
        pinned(self.what())

    def test_standard_input_and_pipes(self) -> None:
        os.mkfifo(self.folder / "pipe")
        shown = self.what("-", self.folder / "pipe")
        assert shown.startswith("error: - (standard input) is not supported as text [text-not-a-file]\n")
        pinned(shown, "[text-not-a-file]")
        assert shown.count("write the text to a file") == 2

    def test_a_folder_that_cannot_be_created(self) -> None:
        (self.folder / "file").write_text("x")
        (self.folder / "x.txt").write_text("text")
        problems = refused(command.build, [str(self.folder / "x.txt")], BYTES, self.folder / "file" / "data")
        pinned(render(problems))

    def test_a_full_disk_leaves_no_file(self, monkeypatch) -> None:
        (self.folder / "x.txt").write_text("text")
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        monkeypatch.setattr("os.replace", Mock(side_effect=full))
        pinned(refused(command.build, [str(self.folder / "x.txt")], BYTES, self.folder / "out" / "data"))
        assert list((self.folder / "out").iterdir()) == []

    def test_a_name_that_is_too_long(self, capsys) -> None:
        (self.folder / "x.txt").write_text("text")
        for length in (300, 249):
            words = [f"{self.folder}/x.txt", "--tokenizer-type=ByteLevelTokenizer"]
            assert command.main([*words, f"--output-prefix={self.folder}/new/{'n' * length}"]) == 1
            assert "cannot be written: File name too long [data-not-writable]" in capsys.readouterr().err
            assert os.listdir(self.folder) == ["x.txt"]

    def test_a_read_only_file_system(self, capsys, monkeypatch) -> None:
        (self.folder / "x.txt").write_text("text")
        read_only = Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS)))
        words = [f"{self.folder}/x.txt", "--tokenizer-type=ByteLevelTokenizer"]
        with monkeypatch.context() as planted:
            planted.setattr("os.unlink", read_only)
            planted.setattr(Path, "write_text", read_only)
            assert command.main([*words, f"--output-prefix={self.folder}/data"]) == 1
        pinned(capsys.readouterr().err)

    def test_a_prefix_that_ends_in_a_slash(self, capsys) -> None:
        (self.folder / "x.txt").write_text("text")
        assert command.main([f"{self.folder}/x.txt", f"--output-prefix={self.folder}/"]) == 1
        assert f"  = write --output-prefix {self.folder}/text" in capsys.readouterr().err

    def test_a_binary_file(self) -> None:
        (self.folder / "x.parquet").write_bytes(b"PAR1")
        pinned(self.what(self.folder / "x.parquet"))

    def test_not_utf8(self) -> None:
        (self.folder / "x.txt").write_bytes(b"caf\xe9")
        pinned(self.what(self.folder / "x.txt"))
        (self.folder / "x.jsonl").write_bytes(b'{"text": "a"}\n{"text": "caf\xe9"}\n')
        assert f"{self.folder}/x.jsonl:2 is not UTF-8: byte 0xe9 at offset 13" in self.what(self.folder / "x.jsonl")

    def test_a_binary_file_without_a_known_ending_is_reported_once(self, monkeypatch) -> None:
        monkeypatch.setattr(text_files, "piece_size", lambda total: 64)
        (self.folder / "x.dat").write_bytes(b"\x00\x9b\n" * 100)
        told = self.what(self.folder / "x.dat")
        assert told.count("error:") == 1
        pinned(told, "[text-binary]")
        (self.folder / "x.dat").write_bytes(b"caf\xe9\n" * 100)
        assert self.what(self.folder / "x.dat").count("[text-not-utf8]") == 1

    def test_a_line_break_inside_a_string(self) -> None:
        path = self.folder / "x.jsonl"
        path.write_text('{"text": "a\n"}\n')
        pinned(self.what(path), "[text-line-not-json]")

    @pytest.mark.parametrize("name", ["corpus.json", "tokenizer.json"])
    def test_a_record_never_replaces_a_file_of_another_program(self, name) -> None:
        path, prefix = self.folder / name, self.folder / name.removesuffix(".json")
        path.write_text('{"text": "a"}\n')
        with pytest.raises(Problems, match="exists and was not written by deepy data") as caught:
            command.build([str(path)], BYTES, prefix)
        assert caught.value.problems[0].id == "data-record-exists"
        assert path.read_text() == '{"text": "a"}\n' and list(self.folder.iterdir()) == [path]

    @pytest.mark.parametrize("workers", [1, 2])
    def test_lines_that_are_not_what_they_should_be(self, workers) -> None:
        path = self.folder / "x.jsonl"
        path.write_text('{"text": "a"}\n{"text": }\n[1]\n{"body": "b"}\n')
        pinned(self.what(path, workers=workers))

    @pytest.mark.parametrize(
        "row",
        [{"messages": [], "id": "x"}, {"conversation": []}, {"conversations": []}, {"instruction": "a", "output": "b"}],
    )
    def test_conversations(self, row) -> None:
        path = self.folder / "x.jsonl"
        path.write_text(json.dumps(row) + "\n")
        assert self.what(path).endswith("\n  = to tokenise conversations, use deepy data --chat")

    def test_the_same_problem_in_many_lines(self, monkeypatch) -> None:
        path = self.folder / "x.jsonl"
        path.write_text('{"messages": []}\n' * 59 + "[1]\n" + '{"messages": []}\n')
        told = self.what(path)
        heads = [line.removeprefix(f"{path}:") for line in told.splitlines() if line.startswith(f"{path}:")]
        pinned(heads)
        monkeypatch.setattr(parallel, "CHUNK_DOCUMENTS", 4)
        pinned(self.what(path), "[text-line-without-key]")

    def test_damaged_archives(self) -> None:
        whole = zstandard.compress(lines(DOCUMENTS * 50))
        cut = {"c.jsonl.zst": whole[:-20], "d.jsonl.gz": gzip.compress(lines(DOCUMENTS))[:-20]}
        for name, content in {"a.jsonl.zst": b"text", "b.jsonl.gz": b"text", **cut}.items():
            (self.folder / name).write_bytes(content)
            assert f"{name} cannot be decompressed: " in self.what(self.folder / name)
        pinned(self.what(self.folder / "c.jsonl.zst"))

    def test_only_empty_documents(self) -> None:
        (self.folder / "x.txt").write_text("")
        pinned(self.what(self.folder / "x.txt"), "[text-empty]")

    def test_no_vocabulary(self) -> None:
        (self.folder / "x.txt").write_text("a")
        told = self.what(self.folder / "x.txt", "absent", recipe=Recipe("GPT2BPETokenizer"))
        assert "vocab_file is not set" in told and "absent does not exist" in told


class TestCommandLine:
    def test_report(self, tmp_path, capsys, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("x.txt").write_text("aabb")
        assert command.main(["x.txt", *TO_DATA]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "documents  1 in 1 sequences"
        pinned(lines[1])
        pinned(lines[2])
        pinned(lines[3])
        assert lines[-1].split("  ") == ["to use it", "data_path: data"]

    def test_if_missing(self, tmp_path, capsys, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("x.txt").write_text("aabb")
        up_to_date = "data is up to date: 5 tokens, from the same text with the same tokenizer"
        for first_line in ("documents  1 in 1 sequences", up_to_date):
            assert command.main([*TO_DATA, "--if-missing", "--text-path", "x.txt"]) == 0
            assert capsys.readouterr().out.splitlines()[0] == first_line

    def test_problems_are_printed_and_the_exit_code_is_1(self, tmp_path, capsys, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert command.main(["--text-path", "absent", *TO_DATA]) == 1
        assert capsys.readouterr().err.startswith("error: absent does not exist")

    @pytest.mark.parametrize(
        ("option", "hint"), [("--workers=0", "remove --workers"), ("--output-prefix=x.bin", "write --output-prefix x")]
    )
    def test_options_that_cannot_be_meant(self, tmp_path, capsys, option, hint) -> None:
        (tmp_path / "x.txt").write_text("a")
        assert command.main([str(tmp_path / "x.txt"), *TO_DATA, option]) == 1
        problem = capsys.readouterr().err
        assert "[data-option-invalid]" in problem and hint in problem

    def test_output_that_nobody_reads(self, tmp_path) -> None:
        (tmp_path / "x.txt").write_text("a")
        words = [sys.executable, "-m", command.__name__, "x.txt", *TO_DATA]
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(words, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writing)
        assert (done.returncode, "Error" in done.stderr) == (1, False)

    def test_no_torch_is_loaded(self) -> None:
        program = "import sys, neoxargs.data.command; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
