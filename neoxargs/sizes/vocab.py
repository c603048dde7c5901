"""How many tokens a tokenizer knows, without loading it: the summary, the plan and the trainer ask here.

The trainer's own tokenizers (`neoxargs/train/data/tokenizer.py`) are tested to agree with these counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Byte values, then one end-of-document token.
BYTE_LEVEL = 257
#: NeoX's character tokenizer has a fixed table, larger than the 256 byte values it uses.
CHAR_LEVEL = 512
#: OpenAI's GPT-2 vocabulary as Hugging Face ships it, plus the padding token that NeoX adds.
HF_GPT2 = 50257 + 1
#: The encodings that tiktoken knows by name.
TIKTOKEN = {"gpt2": 50257, "r50k_base": 50257, "p50k_base": 50281, "cl100k_base": 100277, "o200k_base": 200019}
#: What HFGPT2Tokenizer adds to the vocabulary it finds.
PADDING = "<|padding|>"


def vocabulary_size(tokenizer_type: str | None, vocab_file: str | None) -> int | None:
    """The number of tokens before padding; None when it cannot be known without the tokenizer itself."""
    count = _COUNTS.get(tokenizer_type or "")
    try:
        return count(vocab_file) if count else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None  # no such file, or not of the expected form: told by whoever must read it


def padded_vocab_size(vocab_size: int, divisible_by: int, model_parallel_size: int) -> int:
    """Rounded up so that every tensor parallel rank holds a share of the same size, a multiple of `divisible_by`."""
    multiple = divisible_by * model_parallel_size
    return -(-vocab_size // multiple) * multiple


def _entries(vocab_file: str | None) -> int | None:
    """Of a vocab.json, a table from token to id."""
    return len(_json(vocab_file)) if vocab_file else None


def _tokenizer_json(vocab_file: str | None) -> int | None:
    """Of a tokenizer.json: the model's tokens and those added beside it, which may repeat some."""
    return len(_tokens(_json(vocab_file))) if vocab_file else None


def _hf_gpt2(vocab_file: str | None) -> int:
    """Of a folder with a tokenizer.json or a vocab.json, or of such a file; without one, GPT-2's own."""
    if not vocab_file or not os.path.exists(vocab_file):
        return HF_GPT2
    tree = _json(str(tokenizer_file(vocab_file)))
    return len(_tokens(tree) | {PADDING})


def tokenizer_file(path: str) -> Path:
    """The file that describes the tokenizer in a folder; a path to a file is returned as it is."""
    given = Path(path)
    if not given.is_dir():
        return given
    return next((given / name for name in ("tokenizer.json", "vocab.json") if (given / name).exists()), given)


def _tokens(tree: Any) -> set[str]:
    if "model" not in tree:
        return set(tree)
    vocabulary = tree["model"]["vocab"]  # a table, or for Unigram models pairs of token and score
    names = vocabulary if isinstance(vocabulary, dict) else [token for token, _ in vocabulary]
    return {*names, *(token["content"] for token in tree.get("added_tokens") or ())}


def _sentencepiece(vocab_file: str | None) -> int | None:
    """Of a .model file, a protobuf message: its field 1, repeated, holds one piece each."""
    if not vocab_file:
        return None
    data, position, pieces = Path(vocab_file).read_bytes(), 0, 0
    while position < len(data):
        key, position = _varint(data, position)
        length, position = _varint(data, position)
        if key & 7 != 2:  # every field of this message has a length
            raise ValueError("not a SentencePiece model")
        pieces += key >> 3 == 1
        position += length
    return pieces


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data):
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
    raise ValueError("the file ends within a number")


def _json(path: str | None) -> Any:
    assert path is not None
    return json.loads(Path(path).read_text(encoding="utf-8"))


_COUNTS: dict[str, Callable[[str | None], int | None]] = {
    "ByteLevelTokenizer": lambda _: BYTE_LEVEL,
    "CharLevelTokenizer": lambda _: CHAR_LEVEL,
    "GPT2BPETokenizer": _entries,
    "HFTokenizer": _tokenizer_json,
    "HFGPT2Tokenizer": _hf_gpt2,
    "SPMTokenizer": _sentencepiece,
    "TiktokenTokenizer": lambda name: TIKTOKEN.get(name or ""),
}
