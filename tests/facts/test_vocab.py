"""Counting a vocabulary without its tokenizer."""

import json

import pytest

from neoxargs.facts.vocab import padded_vocab_size, vocabulary_size


def test_tokenizers_without_a_file() -> None:
    assert vocabulary_size("ByteLevelTokenizer", None) == 257
    assert vocabulary_size("CharLevelTokenizer", "ignored.json") == 512
    assert vocabulary_size("HFGPT2Tokenizer", None) == 50258
    assert vocabulary_size("TiktokenTokenizer", "cl100k_base") == 100277


def test_a_vocab_json_may_have_the_token_model(tmp_path) -> None:
    """As GPT-2's, which is not a tokenizer.json for that."""
    path = tmp_path / "vocab.json"
    path.write_text('{"model": 0, "a": 1}')
    assert vocabulary_size("GPT2BPETokenizer", str(path)) == 2


def test_a_vocab_json_counts_its_entries(tmp_path) -> None:
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps({"a": 0, "b": 1, "<|endoftext|>": 2}))
    assert vocabulary_size("GPT2BPETokenizer", str(path)) == 3


@pytest.mark.parametrize("vocab", [{"a": 0, "b": 1, "</s>": 2}, [["a", 0.0], ["b", -1.0], ["</s>", -2.0]]])
def test_a_tokenizer_json_counts_added_tokens_once(tmp_path, vocab) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(
        json.dumps({"model": {"vocab": vocab}, "added_tokens": [{"content": "</s>"}, {"content": "<new>"}]})
    )
    assert vocabulary_size("HFTokenizer", str(path)) == 4
    assert vocabulary_size("HFGPT2Tokenizer", str(tmp_path)) == 5  # and the padding token


def test_a_sentencepiece_model_counts_its_pieces(tmp_path) -> None:
    piece = b"\x0a\x06" + b"\x0a\x04abcd"  # field 1: a message whose field 1 is the text
    trainer = b"\x12\x82\x01" + b"\x00" * 130  # field 2, with a length of two bytes
    path = tmp_path / "tokenizer.model"
    path.write_bytes(piece * 3 + trainer + piece)
    assert vocabulary_size("SPMTokenizer", str(path)) == 4
    path.write_bytes(b"plain text")
    assert vocabulary_size("SPMTokenizer", str(path)) is None


def test_unknown_stays_unknown(tmp_path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("3")
    for name in ("absent.json", "broken.json", "list.json"):
        assert vocabulary_size("HFTokenizer", str(tmp_path / name)) is None
        assert vocabulary_size("GPT2BPETokenizer", str(tmp_path / name)) is None
    assert vocabulary_size("GPT2BPETokenizer", None) is None
    assert vocabulary_size("TiktokenTokenizer", "unheard_of") is None
    assert vocabulary_size(None, None) is None


@pytest.mark.parametrize(
    ("size", "divisible_by", "ranks", "padded"),
    [(50257, 128, 1, 50304), (50257, 128, 8, 51200), (257, 1, 2, 258), (512, 128, 4, 512), (1, 128, 1, 128)],
)
def test_padding(size, divisible_by, ranks, padded) -> None:
    assert padded_vocab_size(size, divisible_by, ranks) == padded
