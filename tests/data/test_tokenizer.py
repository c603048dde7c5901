"""Tokenizers: encoding and decoding, agreement with the libraries, and problems when one cannot be built."""

import json
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models

from neoxargs.base.problems import render
from neoxargs.data.tokenizer import BUILDERS, build_tokenizer
from neoxargs.facts.vocab import vocabulary_size
from tests.support.chat import tokenizer_json
from tests.support.refused import refused
from tests.support.snapshots import pinned

TEXTS = ["hello there, hello world", "x = {'a': 1}\n\n    return x\n", "naïve, 日本語 🙂", "", "<|endoftext|>"]


def options(tokenizer_type, vocab_file=None, merge_file=None):
    as_text = [str(path) if path else None for path in (vocab_file, merge_file)]
    return SimpleNamespace(tokenizer_type=tokenizer_type, vocab_file=as_text[0], merge_file=as_text[1])


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A folder with a small byte pair vocabulary in each of the usual file formats."""
    folder = tmp_path_factory.mktemp("gpt2")
    inner = Tokenizer.from_str(tokenizer_json("gpt2"))
    inner.save(str(folder / "tokenizer.json"))
    inner.model.save(str(folder))
    return folder


def every_tokenizer(folder):
    return [
        options("ByteLevelTokenizer"),
        options("CharLevelTokenizer"),
        options("GPT2BPETokenizer", folder / "vocab.json", folder / "merges.txt"),
        options("HFTokenizer", folder / "tokenizer.json"),
        options("HFGPT2Tokenizer", folder),
    ]


@pytest.mark.parametrize("index", range(5))
def test_decoding_returns_the_text(gpt2, index) -> None:
    given = every_tokenizer(gpt2)[index]
    tokenizer = build_tokenizer(given)
    for text in TEXTS[:-1]:
        assert tokenizer.detokenize(tokenizer.tokenize(text)) == text
    batch = tokenizer.tokenize_batch(TEXTS)
    assert [ids.tolist() for ids in batch] == [tokenizer.tokenize(text) for text in TEXTS]
    assert 0 <= tokenizer.eod < tokenizer.vocab_size
    assert all(id_ < tokenizer.vocab_size for ids in batch for id_ in ids)
    assert tokenizer.vocab_size == vocabulary_size(given.tokenizer_type, given.vocab_file)


@pytest.mark.shows("tokenizer-type", "vocab-file", "merge-file")
def test_type_and_files_determine_the_token_ids(gpt2, tmp_path) -> None:
    def numbers(*given) -> list[int]:
        return build_tokenizer(options(*given)).tokenize("hello there")

    vocabulary, merges = json.loads((gpt2 / "vocab.json").read_text()), gpt2 / "merges.txt"
    h, e = vocabulary["h"], vocabulary["e"]
    swapped, none = tmp_path / "vocab.json", tmp_path / "merges.txt"
    swapped.write_text(json.dumps(vocabulary | {"h": e, "e": h}))
    none.write_text("#version: 0.2\n")
    whole = numbers("GPT2BPETokenizer", gpt2 / "vocab.json", merges)
    letters = numbers("GPT2BPETokenizer", gpt2 / "vocab.json", none)
    assert numbers("ByteLevelTokenizer") == list(b"hello there")
    assert len(whole) < len(letters) == len("hello there")
    assert letters[:2] == [h, e]
    assert numbers("GPT2BPETokenizer", swapped, none)[:2] == [e, h]


def test_bytes_are_their_own_ids_and_257_is_the_vocabulary() -> None:
    tokenizer = build_tokenizer(options("ByteLevelTokenizer"))
    assert tokenizer.tokenize("aé") == [97, 0xC3, 0xA9]
    assert (tokenizer.vocab_size, tokenizer.eod) == (257, 256)
    assert tokenizer.detokenize([97, 0xC3, 256, 0xA9, 0xC3]) == "aé\ufffd"


def test_neox_character_level_numbers() -> None:
    tokenizer = build_tokenizer(options("CharLevelTokenizer"))
    assert (tokenizer.vocab_size, tokenizer.eod) == (512, 0)
    assert tokenizer.tokenize("az") == [97, 122]


def test_gpt2_equals_transformers(gpt2) -> None:
    from transformers import GPT2TokenizerFast

    reference = GPT2TokenizerFast(str(gpt2 / "vocab.json"), str(gpt2 / "merges.txt"))
    ours = build_tokenizer(options("GPT2BPETokenizer", gpt2 / "vocab.json", gpt2 / "merges.txt"))
    for text in TEXTS[:-1]:
        assert ours.tokenize(text) == reference(text)["input_ids"]


def test_gpt2_encodes_a_special_token_in_text_as_text(gpt2) -> None:
    spelt = build_tokenizer(options("GPT2BPETokenizer", gpt2 / "vocab.json", gpt2 / "merges.txt"))
    assert spelt.eod not in spelt.tokenize("<|endoftext|>")
    assert spelt.detokenize(spelt.tokenize("<|endoftext|>")) == "<|endoftext|>"


def test_an_unpaired_surrogate_is_tokenised(gpt2) -> None:
    for given in every_tokenizer(gpt2):
        assert build_tokenizer(given).tokenize_batch(["a\ud83d"])[0].size > 1


def test_texts_are_neither_cut_nor_padded(gpt2, tmp_path) -> None:
    """As in transformers, whatever limits the tokenizer.json has."""
    inner = Tokenizer.from_file(str(gpt2 / "tokenizer.json"))
    plain = build_tokenizer(options("HFTokenizer", gpt2 / "tokenizer.json"))
    inner.enable_truncation(4)
    inner.enable_padding()
    inner.save(str(tmp_path / "tokenizer.json"))
    limited = build_tokenizer(options("HFTokenizer", tmp_path / "tokenizer.json"))
    assert limited.tokenize(TEXTS[1]) == plain.tokenize(TEXTS[1])
    assert [ids.tolist() for ids in limited.tokenize_batch(TEXTS)] == [plain.tokenize(text) for text in TEXTS]


def test_a_vocabulary_with_another_end_of_document(tmp_path) -> None:
    inner = Tokenizer(models.WordLevel({"</s>": 0, "a": 1}, unk_token="a"))
    inner.save(str(tmp_path / "tokenizer.json"))
    assert build_tokenizer(options("HFTokenizer", tmp_path / "tokenizer.json")).eod == 0


class TestProblems:
    def what(self, given) -> str:
        return render(refused(build_tokenizer, given))

    def test_no_file_given(self) -> None:
        pinned(self.what(options("GPT2BPETokenizer")))

    def test_missing_merges(self, gpt2) -> None:
        assert "merge_file is not set" in self.what(options("GPT2BPETokenizer", gpt2 / "vocab.json"))
        told = self.what(options("GPT2BPETokenizer", gpt2 / "vocab.json", gpt2 / "absent.txt"))
        pinned(told, "[vocabulary-missing]")

    def test_missing_tokenizer_json(self, tmp_path) -> None:
        assert "must be a tokenizer.json" in self.what(options("HFTokenizer", tmp_path / "t.json"))

    def test_a_file_that_is_something_else(self, tmp_path) -> None:
        path = tmp_path / "tokenizer.json"
        path.write_text("not json")
        assert f"vocab_file ({path}) cannot be read: " in self.what(options("HFTokenizer", path))

    def test_no_end_of_document(self, tmp_path) -> None:
        Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
        told = self.what(options("HFTokenizer", tmp_path / "tokenizer.json"))
        assert "has no end-of-document token" in told and "<|endoftext|>" in told

    def test_unknown_type(self) -> None:
        pinned(self.what(options("HFTokeniser")))

    @pytest.mark.parametrize(
        ("tokenizer_type", "library"), [("SPMTokenizer", "sentencepiece"), ("TiktokenTokenizer", "tiktoken")]
    )
    def test_a_library_that_is_not_installed(self, tmp_path, monkeypatch, tokenizer_type, library) -> None:
        monkeypatch.setitem(__import__("sys").modules, library, None)
        path = tmp_path / "tokenizer.model"
        path.write_bytes(b"")
        told = self.what(options(tokenizer_type, path))
        pinned(told, "[package-missing]")


def test_every_type_of_the_registry_can_be_built() -> None:
    from typing import get_args

    from neoxargs.registry.data import Tokenizer as Group

    assert set(get_args(Group.parameters["tokenizer_type"].type)) == set(BUILDERS)


def test_the_sentencepiece_adapter() -> None:
    """Against a stand-in for the library: ids, and end-of-document by name or else by id."""
    from neoxargs.data.tokenizer import PieceTokenizer

    class Model:
        pieces = ["<unk>", "<s>", "</s>", "a", "b"]

        def get_piece_size(self):
            return len(self.pieces)

        def unk_id(self):
            return 0

        def eos_id(self):
            return 1

        def piece_to_id(self, piece):
            return self.pieces.index(piece) if piece in self.pieces else 0

        def encode(self, text):
            return [self.encode(t) for t in text] if isinstance(text, list) else [self.pieces.index(c) for c in text]

        def decode(self, ids):
            return "".join(self.pieces[i] for i in ids)

    tokenizer = PieceTokenizer(Model())
    assert tokenizer.eod == 2
    assert tokenizer.detokenize(tokenizer.tokenize("abba")) == "abba"
    assert tokenizer.tokenize_batch(["ab"])[0].tolist() == [3, 4]
    Model.pieces = ["<unk>", "a", "b"]
    assert PieceTokenizer(Model()).eod == 1
    Model.eos_id = lambda self: -1  # declared by no line of the model
    pinned(refused(lambda: PieceTokenizer(Model())))


def test_vocabulary_of_hugging_faces_gpt2_needs_both_files(tmp_path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"<|endoftext|>": 0}))
    pinned(refused(lambda: build_tokenizer(options("HFGPT2Tokenizer", tmp_path))))


@pytest.mark.parametrize(("added", "with_padding"), [(None, 4465), ("<x>", 4465), ("b", 4466)])
def test_ids_that_a_vocabulary_leaves_out_count(tmp_path, added, with_padding) -> None:
    """The sizes equal those of the tokenizers, whose ids may have holes."""
    model = {"type": "WordLevel", "vocab": {"<|endoftext|>": 0, "a": 1, "b": 4464}, "unk_token": "a"}
    options_of_token = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokens = [{"id": 3, "content": added} | options_of_token] if added else []
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": tokens, "model": model}))
    for kind, path, size in (
        ("HFTokenizer", tmp_path / "tokenizer.json", 4465),
        ("HFGPT2Tokenizer", tmp_path, with_padding),
    ):
        assert vocabulary_size(kind, str(path)) == build_tokenizer(options(kind, path)).vocab_size == size
