"""Vocabulary sizes of tokenizers, computed without loading them, for the summary, the plan and the trainer.

A test compares the counts with the trainer's tokenizers (`neoxargs/data/tokenizer.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from neoxargs.base.problems import Problem
from neoxargs.base.regular_files import read_regular
from neoxargs.config.config import Config

#: The most bytes of a vocabulary: fifty times those of the largest.
MAX_BYTES = 1 << 30
#: 256 byte values and an end-of-document token.
BYTE_LEVEL = 257
#: GPT-NeoX's character tokenizer has a table of fixed size, larger than the 256 byte values it uses.
CHAR_LEVEL = 512
#: The end-of-document token of tokenizers without a file.
FIXED_ENDS = {"ByteLevelTokenizer": BYTE_LEVEL - 1, "CharLevelTokenizer": 0}
#: OpenAI's GPT-2 vocabulary as distributed by Hugging Face, plus the padding token that GPT-NeoX adds.
HF_GPT2 = 50257 + 1
#: tiktoken's encodings and their sizes.
TIKTOKEN = {"gpt2": 50257, "r50k_base": 50257, "p50k_base": 50281, "cl100k_base": 100277, "o200k_base": 200019}
#: Tokenizers that can be made from the same vocabulary, stored in different files.
SAME_VOCABULARY = {"GPT2BPETokenizer", "HFTokenizer", "HFGPT2Tokenizer"}
#: The token that HFGPT2Tokenizer adds to the vocabulary.
PADDING = "<|padding|>"


def vocabulary_size(tokenizer_type: str | None, vocab_file: str | None) -> int | None:
    """Return the number of token ids before padding, or None if it cannot be known without the tokenizer."""
    try:
        return _counted(tokenizer_type or "", vocab_file, stamp(vocab_file))
    except (OSError, ValueError, TypeError, AttributeError):
        return None  # a missing or malformed file is reported where the tokenizer is loaded


@lru_cache(maxsize=8)  # a search of layouts needs the number for each of them
def _counted(tokenizer_type: str, vocab_file: str | None, version: object) -> int | None:
    """Count the tokens, once for each version of a file."""
    count = _COUNTS.get(tokenizer_type)
    return count(vocab_file) if count else None


def stamp(vocab_file: str | None) -> object:
    """Return what changes when the file does."""
    if not vocab_file or not (file := tokenizer_file(vocab_file)).is_file():
        return None
    status = file.stat()
    return status.st_size, status.st_mtime_ns


class VocabularyHashes(NamedTuple):
    """What identifies the vocabulary of a tokenizer; "" for tokenizers without a file."""

    vocab_file_hash: str = ""
    vocabulary_hash: str = ""
    """Of the tokens with their ids, which are the same in files that are formatted differently."""


def vocabulary_hashes(tokenizer_type: str, vocab_file: str | None) -> VocabularyHashes:
    """Return the hashes of a tokenizer's vocabulary, as far as it has a file that can be read."""
    of_file, ids = vocab_file_hash(vocab_file), ids_of_tokens(tokenizer_type, vocab_file)
    if ids is None:
        return VocabularyHashes(of_file, of_file)
    return VocabularyHashes(of_file, _hash(json.dumps(ids, sort_keys=True).encode()))


def ids_of_tokens(tokenizer_type: str, vocab_file: str | None) -> dict[str, int] | None:
    """Return token -> id of a vocabulary; None if it cannot be known without the tokenizer."""
    try:
        return _ids(_json(str(tokenizer_file(vocab_file or "")))) if tokenizer_type in SAME_VOCABULARY else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # a malformed file
        return None


def merges_of(tokenizer_type: str, vocab_file: str | None, merge_file: str | None) -> set[tuple[str, ...]]:
    """Return the pairs of tokens that a byte pair encoding merges; empty if it is none, or that is not known."""
    try:
        if tokenizer_type == "GPT2BPETokenizer":
            lines = read_regular(Path(merge_file or ""), MAX_BYTES).decode().splitlines()
            return {tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")}
        model = _json(str(tokenizer_file(vocab_file or "")))["model"] if tokenizer_type in SAME_VOCABULARY else {}
        if model.get("type") != "BPE" or model.get("dropout"):
            return set()
        return {tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # reported where the tokenizer is loaded
        return set()


def vocab_file_hash(vocab_file: str | None) -> str:
    """Return the hash of a vocabulary file; "" if there is no such file."""
    try:
        return _hash(read_regular(tokenizer_file(vocab_file or ""), MAX_BYTES))
    except OSError:
        return ""


def _hash(data: bytes) -> str:
    import hashlib  # slow to import, and few runs have such a file

    return hashlib.sha256(data).hexdigest()[:16]


def padded_vocab_size(vocab_size: int, divisible_by: int, model_parallel_size: int) -> int:
    """Round up so that the rows of every tensor parallel rank are a multiple of `divisible_by`."""
    multiple = divisible_by * model_parallel_size
    return -(-vocab_size // multiple) * multiple


def size_of(ids: Mapping[str, int]) -> int:
    """Return the number of token ids, given token -> id. A pruned or extended vocabulary leaves out some ids."""
    return max(len(ids), 1 + max(ids.values(), default=-1))


def _entries(vocab_file: str | None) -> int | None:
    """Return the size of a vocab.json, which maps tokens to ids."""
    return size_of(_ids(_json(vocab_file))) if vocab_file else None


def _tokenizer_json(vocab_file: str | None) -> int | None:
    """Return the size of a tokenizer.json: of its model and its added tokens, which can repeat some of the model's."""
    return size_of(_ids(_json(vocab_file))) if vocab_file and _is_tokenizer_json(vocab_file) else None


def _hf_gpt2(vocab_file: str | None) -> int:
    """Return the size of a tokenizer.json or vocab.json, or of a folder with one; by default GPT-2's."""
    if not vocab_file or not os.path.exists(vocab_file):
        return HF_GPT2
    return size_of(_ids(_json(str(tokenizer_file(vocab_file))), PADDING))


def tokenizer_file(path: str) -> Path:
    """Return the file that describes the tokenizer in a folder; a path to a file is returned unchanged."""
    given = Path(path)
    if not given.is_dir():
        return given
    return next((given / name for name in ("tokenizer.json", "vocab.json") if (given / name).exists()), given)


def _ids(tree: Any, *more: str) -> dict[str, int]:
    """Return token -> id of a tokenizer.json or vocab.json. more: tokens to add to it."""
    is_vocabulary = not isinstance(tree.get("model"), dict)  # `model` is a token of GPT-2
    vocabulary = tree if is_vocabulary else tree["model"]["vocab"]
    if isinstance(vocabulary, list):  # pairs of token and score, of a Unigram model
        ids = {token: id for id, (token, _) in enumerate(vocabulary)}
    else:  # the library ignores other entries
        ids = {token: id for token, id in vocabulary.items() if isinstance(id, int)}
    added = [] if is_vocabulary else [token["content"] for token in tree.get("added_tokens") or ()]
    following = len(ids)
    for token in (*added, *more):
        # As the library does, which ignores the ids of added tokens in the file.
        following = max(following, ids.setdefault(token, following) + 1)
    return ids


def _sentencepiece(vocab_file: str | None) -> int | None:
    """Count the pieces of a .model file, a protobuf message whose repeated field 1 holds one piece each."""
    if not vocab_file:
        return None
    data, position, pieces = read_regular(vocab_file, MAX_BYTES), 0, 0
    while position < len(data):
        key, position = _varint(data, position)
        length, position = _varint(data, position)
        if key & 7 != 2:  # wire type 2, length-delimited, is the type of every field of this message
            raise ValueError("not a SentencePiece model")
        pieces += key >> 3 == 1
        position += length
    return pieces


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a protobuf varint at a position, and the position after it."""
    value = shift = 0
    while position < len(data):
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
    raise ValueError("the file ends in the middle of a number")


def _json(path: str) -> Any:
    return _parsed(path, stamp(path))


@lru_cache(maxsize=2)  # several checks read the same file, which may have megabytes
def _parsed(path: str, version: object) -> Any:
    try:
        return json.loads(read_regular(path, MAX_BYTES).decode())
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None


def has_format(tokenizer_type: str, vocab_file: str) -> bool:
    """Return whether a local file has the format that its tokenizer reads; True if that is not known."""
    has = _FORMATS.get(tokenizer_type)
    try:
        return has is None or has(vocab_file)
    except ValueError:  # not JSON, not text or not a SentencePiece model
        return False
    except OSError:
        return not os.path.isdir(vocab_file)


def _is_tokenizer_json(path: str) -> bool:
    tree = _json(path)
    model = tree.get("model") if isinstance(tree, dict) else None
    return isinstance(model, dict) and isinstance(model.get("vocab"), dict | list)


def _is_vocab_json(path: str) -> bool:
    """Return whether a file maps tokens to ids; the library ignores entries with other values."""
    tree = _json(path)
    return isinstance(tree, dict) and any(isinstance(number, int) for number in tree.values())


_FORMATS: dict[str, Callable[[str], bool]] = {
    "GPT2BPETokenizer": _is_vocab_json,
    "HFTokenizer": _is_tokenizer_json,
    "SPMTokenizer": lambda path: bool(_sentencepiece(path)),
}


_COUNTS: dict[str, Callable[[str | None], int | None]] = {
    "ByteLevelTokenizer": lambda _: BYTE_LEVEL,
    "CharLevelTokenizer": lambda _: CHAR_LEVEL,
    "GPT2BPETokenizer": _entries,
    "HFTokenizer": _tokenizer_json,
    "HFGPT2Tokenizer": _hf_gpt2,
    "SPMTokenizer": _sentencepiece,
    "TiktokenTokenizer": lambda name: TIKTOKEN.get(name or ""),
}


def given_rows(config: Config) -> int | None:
    """Return `padded_vocab_size`; None if it is not set."""
    present = config.values.get("padded_vocab_size")
    return present.value if present else None


def too_few_rows(config: Config, tokens: int | None = None) -> Iterator[Problem]:
    """Yield the error of an embedding with fewer rows than the tokenizer has tokens.

    tokens: the size of the vocabulary, by default as far as it is known without the tokenizer.
    """
    rows, kind = given_rows(config), config.tokenizer.tokenizer_type
    tokens = vocabulary_size(kind, config.tokenizer.vocab_file) if tokens is None else tokens
    if rows and tokens and rows < tokens:
        what = f"padded_vocab_size ({rows}) is smaller than the tokenizer's vocabulary ({tokens})"
        hint = "remove padded_vocab_size; it is then computed from the tokenizer"
        place, about = config.place("padded_vocab_size"), ("padded_vocab_size", "tokenizer_type")
        yield Problem(what, place, hint, id="padded-vocab-too-small", about=about)
