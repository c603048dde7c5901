"""Missing files are reported before anything starts, with the name that was probably meant."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from neoxargs.checks.checkpoint.folders import missing_checkpoint
from neoxargs.checks.data import files as data_files
from neoxargs.checks.data.files import missing_files, unnamed_files, unreadable_prompts
from neoxargs.checks.machine import disk_space
from neoxargs.facts.vocab import vocabulary_hashes
from neoxargs.files.prompts import read_prompts
from neoxargs.files.token_files import writer as indexed
from tests.support.configure import HERE
from tests.support.configure import written as config
from tests.support.finetuning import token_file
from tests.support.snapshots import pinned

MAKE = "create it with: deepy data TEXT --output-prefix {}"


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A folder with the token files `a_text_document` and, half of them, `b`."""
    token_file(tmp_path / "a_text_document", [[7]])
    (tmp_path / "b.bin").touch()
    return f"{tmp_path}/"


@pytest.mark.parametrize("name", ["a_text_document", "a", "a_text", "a_text_document.bin", "b", "c", "c ./d"])
def test_token_files(data, name):
    pinned(missing_files(config(data_path=data + name)))


def test_many_missing_token_files_of_one_parameter_are_one_problem(data):
    paths = [f"{data}{name}" for name in ("u", "v", "a", "w", "x", "y", "a_text_document")]
    several, near = missing_files(config(train_data_paths=paths))
    pinned(several)
    assert near.hint == f"did you mean {data}a_text_document?"
    assert len(missing_files(config(train_data_paths=paths[:4]))) == 4


def test_a_missing_token_file_of_a_validation_set_names_the_set(data):
    sets = {"code": data + "a_text_document", "law": {"data_paths": [data + "u", data + "a_text_document"]}}
    (problem,) = missing_files(config(validation=sets))
    assert problem.what.startswith("validation, law: ") and problem.about == ("validation",)


def test_thousands_of_datasets_take_a_search_for_a_hundred_of_them(data, monkeypatch):
    searched, limits = [], []
    similar, limit = data_files._similar_file, data_files._limit
    monkeypatch.setattr(data_files, "_similar_file", lambda prefix: searched.append(prefix) or similar(prefix))
    monkeypatch.setattr(data_files, "_limit", lambda config: limits.append(config) or limit(config))
    paths = [f"{data}missing_{number}" for number in range(2_000)]
    (problem,) = missing_files(config(train_data_paths=[f"{data}a_text_document", *paths]))
    assert "for 2000 of 2001 paths" in problem.what
    assert len(searched) <= 100
    # A file that is named four times is missing four times, but searched for once.
    (problem,) = missing_files(config(train_data_paths=paths[:1] * 4))
    assert "for 4 of 4 paths" in problem.what
    assert len(searched) <= 101
    assert len(limits) == 2, "the share of each file is computed once, not for each"


def test_a_folder_of_tasks(tmp_path):
    assert missing_files(config(eval_tasks_path=str(tmp_path))) == []
    (found,) = missing_files(config(eval_tasks_path=str(tmp_path / "none")))
    assert found.where == HERE
    pinned(found.what)


def test_token_files_are_created_with_the_tokenizer_of_the_configuration(data, tmp_path):
    vocab = tmp_path / "vocab.json"
    vocab.write_text('{"a": 0}')
    made = {"tokenizer_type": "GPT2BPETokenizer", "vocab_file": str(vocab), "merge_file": __file__}
    (found,) = missing_files(config(data_path=data + "c", **made))
    flags = f"--tokenizer-type GPT2BPETokenizer --vocab-file {vocab} --merge-file {__file__}"
    assert found.hint == f"{MAKE.format(data)}c {flags}"


def test_weights_among_the_prefixes_are_not_files(data):
    assert not missing_files(config(data_path=[0.3, data + "a_text_document", "0.7", data + "a_text_document"]))
    assert len(missing_files(config(data_path=[0.3, data + "x", 0.7, data + "y"]))) == 2
    assert not missing_files(config(data_path=["1e-3", data + "a_text_document", 1e-5, data + "a_text_document"]))
    assert not missing_files(config(data_path=f"0.3,{data}a_text_document, 0.7, {data}a_text_document"))
    assert len(missing_files(config(data_path=f"0.3,{data}x,7e-1,{data}y"))) == 2
    assert not missing_files(config(data_path=["1E-3", data + "a_text_document", ".5", data + "a_text_document"]))
    assert missing_files(config(data_path=["1.2.3", data + "a_text_document"]))  # a prefix, not a number


def test_every_dataset_parameter_is_checked(data):
    found = missing_files(config(train_data_paths=[data + "x", data + "a_text_document"], valid_data_paths=data + "y"))
    assert [problem.what.partition(":")[0] for problem in found] == ["train_data_paths", "valid_data_paths"]


def test_texts(tmp_path):
    (tmp_path / "one.txt").touch()
    texts = ["python-stdlib", f"{tmp_path}/*.txt", str(tmp_path), f"{tmp_path}/two.txt"]
    pinned(missing_files(config(text_path=texts)))


def test_the_token_file_of_a_text_need_not_exist_yet():
    assert not missing_files(config(text_path="python-stdlib", data_path="runs/data/text"))


@pytest.mark.parametrize(
    ("values", "unnamed", "missing"),
    [
        ({"tokenizer_type": "GPT2BPETokenizer"}, ["vocab_file", "merge_file"], []),
        ({"tokenizer_type": "GPT2BPETokenizer", "vocab_file": "/no/v", "merge_file": "/no/m"}, [], ["/no/v", "/no/m"]),
        ({"tokenizer_type": "HFTokenizer", "vocab_file": "/no/v"}, [], ["/no/v"]),
        ({"tokenizer_type": "SPMTokenizer"}, ["vocab_file"], []),
        ({"tokenizer_type": "HFGPT2Tokenizer", "vocab_file": "gpt2"}, [], []),
        ({"tokenizer_type": "TiktokenTokenizer", "vocab_file": "cl100k_base"}, [], []),
        ({"tokenizer_type": "CharLevelTokenizer"}, [], []),
    ],
)
def test_vocabularies(values, unnamed, missing):
    made = config(text_path="python-stdlib", **values)
    assert [problem.what.rpartition(" ")[2] for problem in unnamed_files(made)] == unnamed
    names = [problem.about[0] for problem in missing_files(made)]
    told = [f"{name} ({path}): there is no such file" for name, path in zip(names, missing, strict=True)]
    assert [problem.what for problem in missing_files(made)] == told


@pytest.mark.parametrize(
    ("kind", "text", "wrong"),
    [
        ("HFTokenizer", '{"model": {"vocab": {"a": 0}}}', False),
        ("HFTokenizer", '{"a": 0}', True),
        ("HFTokenizer", "#version: 0.2", True),
        ("HFTokenizer", "[1]", True),
        ("GPT2BPETokenizer", '{"a": 0}', False),
        ("GPT2BPETokenizer", '{"model": {"vocab": {"a": 0}}}', True),
        ("SPMTokenizer", "plain text", True),
        ("SPMTokenizer", "", True),
    ],
)
def test_a_vocabulary_in_another_format(tmp_path, kind, text, wrong):
    file = tmp_path / "tokenizer.json"
    file.write_text(text)
    found = missing_files(config(text_path="python-stdlib", tokenizer_type=kind, vocab_file=str(file)))
    assert [problem.id for problem in found] == ["tokenizer-file-unreadable"] * wrong
    (folder,) = missing_files(config(text_path="python-stdlib", tokenizer_type=kind, vocab_file=str(tmp_path)))
    assert folder.what.endswith("but is a folder") and folder.hint == f"did you mean {file}?"


def test_names_that_no_file_can_have():
    """Path.exists() of Python 3.11 raises then."""
    for name in ("x" * 5000, "x/" * 3000, "~nobody-here/x", "a\0b"):
        made = config(text_path=name, train_data_paths=name, tokenizer_type="HFTokenizer", vocab_file=name)
        assert {problem.where for problem in missing_files(made)} == {HERE}
        assert len(missing_files(made)) == 3
        assert [problem.where for problem in missing_checkpoint(config(load=name))] == [HERE]
        assert [problem.where for problem in disk_space.unwritable_folders(config(save="x" * 5000), "save")] == [HERE]
    assert not list(disk_space.unwritable_folders(config(save="."), "save"))


def test_a_run_without_data_is_reported():
    pinned(unnamed_files(config()))
    assert not unnamed_files(config(data_path="x"))


@pytest.mark.parametrize(("name", "size"), [("bin", 5), ("bin", 21), ("idx", 60), ("idx", 0), ("bin", 20)])
def test_token_files_that_do_not_belong_together(tmp_path, name, size):
    with indexed.new_file(tmp_path / "tokens", np.uint16) as writer:
        writer.add(np.arange(10, dtype=np.uint16), [4, 6], [True, True])
    (tmp_path / "tokens.checksums.json").unlink()  # as of a file of another program
    os.truncate(tmp_path / f"tokens.{name}", size)
    pinned(missing_files(config(data_path=str(tmp_path / "tokens"))))


@pytest.mark.parametrize(
    ("at", "kind", "value"),
    [(34, "<i", 5), (34, "<i", -4), (18, "<q", 2**60), (18, "<Q", 2**64 - 1)],
)
def test_an_index_that_contradicts_itself(tmp_path, monkeypatch, at, kind, value):
    """The length of the first of two sequences, and the number of sequences."""
    with indexed.new_file(tmp_path / "tokens", np.uint16) as writer:
        writer.add(np.arange(10, dtype=np.uint16), [4, 6], [True, True])
    (tmp_path / "tokens.checksums.json").unlink()  # as of a file of another program
    index = bytearray((tmp_path / "tokens.idx").read_bytes())
    struct.pack_into(kind, index, at, value)
    (tmp_path / "tokens.idx").write_bytes(index)
    made = config(data_path=str(tmp_path / "tokens"))
    pinned(missing_files(made))
    monkeypatch.setattr(data_files, "READ_AT_MOST", 7)  # two lengths have 8 bytes
    assert bool(missing_files(made)) == (at != 34)
    assert data_files.unread(made) == {str(tmp_path / "tokens"): len(index) + 20}


def test_labels_in_place_of_text(tmp_path):
    for name, first in (("data", 7), ("data_label", -100)):
        token_file(tmp_path / name, [[first, 8, 9]])
    assert not missing_files(config(train_data_paths=[f"{tmp_path}/data"]))
    assert not missing_files(config(train_label_data_paths=[f"{tmp_path}/data_label"]))
    (found,) = missing_files(config(train_data_paths=[f"{tmp_path}/data_label"]))
    pinned(found)
    assert found.hint == f"did you mean {tmp_path}/data?"


@pytest.mark.parametrize(
    ("recorded", "other"), [("CharLevelTokenizer", True), ("ByteLevelTokenizer", False), (None, False)]
)
def test_data_of_another_tokenizer(tmp_path, recorded, other):
    token_file(tmp_path / "data", [[7, 8, 9]])
    (tmp_path / "data.json").write_text(json.dumps({"tokenizer_type": recorded, "vocab_size": 257} if recorded else {}))
    found = missing_files(config(data_path=f"{tmp_path}/data"))
    told = f"data_path: {tmp_path}/data was tokenised by {recorded}, but tokenizer_type is ByteLevelTokenizer"
    assert [problem.what for problem in found] == [told] * other


def test_tokenizers_that_read_the_same_vocabulary_from_different_files(tmp_path):
    token_file(tmp_path / "data", [[7, 8, 9]])
    (tmp_path / "data.json").write_text('{"tokenizer_type": "GPT2BPETokenizer", "vocab_size": 0}')
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {}}}')
    kind = {"tokenizer_type": "HFTokenizer", "vocab_file": f"{tmp_path}/tokenizer.json"}
    assert not missing_files(config(data_path=f"{tmp_path}/data", **kind))


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        (["a", "b", "c"], None),
        (["b", "a", "c"], "with a different vocabulary than that of vocab_file ({}/tokenizer.json)"),
        (["a", "b"], "with a vocabulary of 3 tokens, but the tokenizer's vocabulary has 2"),
    ],
)
def test_data_of_another_vocabulary(tmp_path, tokens, sentence):
    def write_tokenizer(tokens, indent=None):
        tree = {"model": {"vocab": {token: number for number, token in enumerate(tokens)}}}
        (tmp_path / "tokenizer.json").write_text(json.dumps(tree, indent=indent))
        return {"tokenizer_type": "HFTokenizer", "vocab_file": f"{tmp_path}/tokenizer.json"}

    kind = write_tokenizer(["a", "b", "c"])
    hashes = vocabulary_hashes(*kind.values())._asdict()
    token_file(tmp_path / "data", [[0, 1, 2]])
    (tmp_path / "data.json").write_text(json.dumps({"tokenizer_type": "HFTokenizer", "vocab_size": 3, **hashes}))
    assert not missing_files(config(data_path=f"{tmp_path}/data", **kind))
    write_tokenizer(tokens, indent=1)  # which alone changes the file's hash
    found = missing_files(config(data_path=f"{tmp_path}/data", **kind))
    expected = f"data_path: {tmp_path}/data was tokenised {sentence}".format(tmp_path)
    assert [problem.what for problem in found] == [expected] * (sentence is not None)


def test_token_ids_beyond_the_embedding(tmp_path):
    token_file(tmp_path / "data", [[7, 384, 9]])
    settings = {"data_path": f"{tmp_path}/data", "make_vocab_size_divisible_by": 128}
    (found,) = missing_files(config(**settings))
    pinned(found)
    token_file(tmp_path / "data", [[7, 383, 9]])
    (found,) = missing_files(config(**settings))
    pinned(found)
    token_file(tmp_path / "data", [[7, 256, 9]])
    assert not missing_files(config(**settings))


def test_ids_that_wrapped_around_are_of_another_tokenizer(tmp_path):
    """A vocabulary of more than 65,536 tokens in a file of 16 bits; files of 32 bits can hold all ids."""
    settings = {"data_path": str(tmp_path / "data"), "tokenizer_type": "TiktokenTokenizer", "vocab_file": "o200k_base"}
    token_file(tmp_path / "data", [[7, 8]], np.uint16)
    (found,) = missing_files(config(**settings))
    pinned(found)
    token_file(tmp_path / "data", [[7, 8]], np.int32)
    assert not missing_files(config(**settings))


def test_ids_are_read_from_several_parts_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "EXAMINED", 4)
    for at in (0, 333, 666, 999):
        ids = [7] * 1000
        ids[at] = 384
        prefix = token_file(tmp_path / f"data{at}", [ids[:600], ids[600:]])
        (tmp_path / f"data{at}.checksums.json").unlink()
        (found,) = missing_files(config(data_path=prefix))
        assert f"384 in document {int(at >= 600)}" in found.what


def test_every_id_of_a_file_with_a_record_is_known(tmp_path, monkeypatch):
    """Without it, only some parts are read."""
    monkeypatch.setattr(data_files, "EXAMINED", 2)
    token_file(tmp_path / "data", [[7], [8, 9, 384, 9, 9, 9]])
    token_file(tmp_path / "labels", [[-100], [8, 9, 384, 9, 9, 9]])
    settings = {"train_data_paths": [f"{tmp_path}/data"], "train_label_data_paths": [f"{tmp_path}/labels"]}
    pinned(missing_files(config(**settings)))
    for name in ("data", "labels"):
        (tmp_path / f"{name}.checksums.json").unlink()
    assert not missing_files(config(**settings))


@pytest.mark.parametrize("at", [0, 20, 38])
@pytest.mark.parametrize("suffix", ["bin", "idx"])
def test_small_files_are_compared_with_their_checksums_and_large_ones_named(tmp_path, monkeypatch, suffix, at):
    settings = {"data_path": token_file(tmp_path / "data", [[7, 8, 9, 1, 2, 3, 4, 5, 6, 7]]), "tokenizer_type": "none"}
    file = tmp_path / f"data.{suffix}"
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    (found,) = missing_files(config(**settings))
    assert (found.id, found.where) == ("data-file-changed", HERE)
    assert found.what.startswith(f"{file} has changed since its checksum was recorded: it has the checksum ")
    monkeypatch.setattr(data_files, "READ_AT_MOST", 8)
    if suffix == "bin":
        assert not missing_files(config(**settings))
        assert data_files.unread(config(**settings)) == {settings["data_path"]: 40 + 62}


def test_prompts_of_a_file_are_read_before_the_start(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    (absent,) = unreadable_prompts(config(eval_prompts_file=str(file)), "eval_prompts_file")
    assert (absent.id, absent.where) == ("prompt-file-unreadable", HERE) and "No such file" in absent.what
    file.write_text(" \n\n")
    (empty,) = unreadable_prompts(config(eval_prompts_file=str(file)), "eval_prompts_file")
    assert (empty.id, empty.what) == ("prompt-file-empty", f"eval_prompts_file ({file}) contains no prompts")
    file.write_text("def f(\n\n  Once upon \n")
    assert unreadable_prompts(config(eval_prompts_file=str(file)), "eval_prompts_file") == []
    assert read_prompts("eval_prompts_file", str(file)) == ["def f(", "Once upon"]


@pytest.mark.parametrize(
    ("data_path", "refused"),
    [
        ([0.3, "a", 0.7, "b"], False),
        (["0.3", "a"], False),
        (["a", "b"], False),
        ("a,b", False),
        (["a", 0.3, "b", 0.7], True),
        (["a", "b", 0.3], True),
        ([0.3, "a", "b"], True),
        ([0.3, 0.7, "a", "b"], True),
        ("0.3,a,0.7", True),
    ],
)
def test_every_prefix_of_a_blend_has_a_weight_or_none(data_path: object, refused: bool) -> None:
    found = [problem.id for problem in missing_files(config(data_path=data_path))]
    assert ("data-weight-misplaced" in found) == refused
