"""Tokenizers: text to token ids and back. There is one builder per `tokenizer_type`.

`tokenize` is for one text, such as a prompt. `tokenize_batch` is for a corpus and returns arrays, which avoids creating
a Python integer per token where the library allows it. Libraries are imported only by the tokenizers that need them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neoxargs.base.problems import Problem, Problems, did_you_mean
from neoxargs.facts.vocab import CHAR_LEVEL, PADDING, size_of, tokenizer_file
from neoxargs.files.tokenizer_folder import (
    END_OF_DOCUMENT,
    end_ids,
    end_of_document,
    folder_of,
    special_tokens,
)

Ids = NDArray[np.int32]


class TokenizerOptions(Protocol):
    """The `tokenizer` group of a configuration, or any object with these three attributes."""

    @property
    def tokenizer_type(self) -> str: ...
    @property
    def vocab_file(self) -> str | None: ...
    @property
    def merge_file(self) -> str | None: ...


class Tokenizer(Protocol):
    """The interface of a tokenizer."""

    vocab_size: int
    """Number of token ids, special tokens included."""
    eod: int
    """Id of the end-of-document token."""
    start: int
    """Id of the token that stands for an empty text before the first generated token."""
    ends: frozenset[int]
    """Ids of further tokens that end a generation: those of the folder's generation_config.json."""

    def tokenize(self, text: str) -> list[int]: ...
    def tokenize_batch(self, texts: Sequence[str]) -> list[Ids]: ...
    def detokenize(self, ids: Iterable[int]) -> str: ...


class ByteTokenizer:
    """One token per byte of UTF-8. Lossless; needs no file."""

    def __init__(self, vocab_size: int, eod: int) -> None:
        self.vocab_size, self.eod, self.start = vocab_size, eod, eod
        self.ends: frozenset[int] = frozenset()

    def tokenize(self, text: str) -> list[int]:
        return list(utf8(text))

    def tokenize_batch(self, texts: Sequence[str]) -> list[Ids]:
        return [np.frombuffer(utf8(text), dtype=np.uint8).astype(np.int32) for text in texts]

    def detokenize(self, ids: Iterable[int]) -> str:
        """Return the text of the bytes; end-of-document and unused ids have no text."""
        return bytes(i for i in ids if i < 256 and i != self.eod).decode("utf-8", errors="replace")


def utf8(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogatepass")  # JSON may contain an unpaired surrogate


class FastTokenizer:
    """A tokenizer of Hugging Face's `tokenizers` library."""

    def __init__(self, inner: Any, name: str, folder: Path | None = None) -> None:
        """name: of the tokenizer, in problems. folder: with its files."""
        self.inner = inner
        # A tokenizer.json can limit or pad every text, which transformers ignores unless it is asked to do so.
        inner.no_truncation()
        inner.no_padding()
        self.vocab_size: int = size_of(inner.get_vocab(with_added_tokens=True))
        self.start, self.eod, self.ends = _boundaries(self.id_of, name, folder)

    def id_of(self, token: str) -> int | None:
        """Return the id of a token; None if there is none."""
        found: int | None = self.inner.token_to_id(token)
        return found

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.inner.encode(valid(text)).ids
        return ids

    def tokenize_batch(self, texts: Sequence[str]) -> list[Ids]:
        # fast: without the offsets of tokens in the text.
        encodings = self.inner.encode_batch_fast([valid(text) for text in texts])
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    def detokenize(self, ids: Iterable[int]) -> str:
        text: str = self.inner.decode(list(ids))
        return text


def valid(text: str) -> str:
    """Replace unpaired surrogates, for which `tokenizers` would reject the text."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode("utf-8")


class PieceTokenizer:
    """A SentencePiece model."""

    def __init__(self, inner: Any, folder: Path | None = None) -> None:
        self.inner = inner
        self.vocab_size: int = inner.get_piece_size()
        declared = inner.eos_id() if inner.eos_id() >= 0 else None
        self.start, self.eod, self.ends = _boundaries(self.id_of, "the SentencePiece model", folder, declared)

    def id_of(self, piece: str) -> int | None:
        """Return the id of a token; None if there is none."""
        token: int = self.inner.piece_to_id(piece)
        return None if token == self.inner.unk_id() else token

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.inner.encode(text)
        return ids

    def tokenize_batch(self, texts: Sequence[str]) -> list[Ids]:
        return [np.array(ids, dtype=np.int32) for ids in self.inner.encode(list(texts))]

    def detokenize(self, ids: Iterable[int]) -> str:
        text: str = self.inner.decode([int(i) for i in ids])
        return text


class TiktokenTokenizer:
    """One of OpenAI's encodings, by name."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.vocab_size: int = inner.n_vocab
        self.eod: int = inner.eot_token
        self.start = self.eod
        self.ends: frozenset[int] = frozenset()

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.inner.encode_ordinary(text)
        return ids

    def tokenize_batch(self, texts: Sequence[str]) -> list[Ids]:
        return [np.array(self.tokenize(text), dtype=np.int32) for text in texts]

    def detokenize(self, ids: Iterable[int]) -> str:
        text: str = self.inner.decode([int(i) for i in ids])
        return text


def build_tokenizer(options: TokenizerOptions) -> Tokenizer:
    """Build the tokenizer that `tokenizer_type`, `vocab_file` and `merge_file` describe.

    Raises Problems if the type is unknown, a file is missing or unreadable, or a library is not installed.
    """
    name = options.tokenizer_type
    builder = BUILDERS.get(name)
    if builder is None:
        hint = did_you_mean(name, BUILDERS) or f"use one of {', '.join(BUILDERS)}"
        what = f"tokenizer_type ({name}) is unknown"
        raise Problems(Problem(what, hint=hint, id="tokenizer-unknown", about=("tokenizer_type",)))
    return builder(options)


def _gpt2_bpe(options: TokenizerOptions) -> Tokenizer:
    """GPT-2's byte pair encoding. `<|endoftext|>` within text is encoded as text, not as the end-of-document token."""
    vocab = _file("vocab_file", options.vocab_file, "GPT-2's vocab.json")
    merges = _file("merge_file", options.merge_file, "GPT-2's merges.txt")
    inner = _reading(vocab, lambda: _byte_pair(vocab, merges))
    return FastTokenizer(inner, str(vocab), _folder(options))


def _byte_pair(vocab: Path, merges: Path) -> Any:
    from tokenizers import Tokenizer as Fast
    from tokenizers import decoders, models, pre_tokenizers

    inner = Fast(models.BPE.from_file(str(vocab), str(merges)))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _hf(options: TokenizerOptions) -> Tokenizer:
    path = _file("vocab_file", options.vocab_file, "a tokenizer.json")
    return FastTokenizer(_tokenizer_json(path), str(path), _folder(options))


def _hf_gpt2(options: TokenizerOptions) -> Tokenizer:
    """Hugging Face's GPT-2 tokenizer with GPT-NeoX's padding token; `vocab_file` is a path or a name on the Hub."""
    if options.vocab_file and Path(options.vocab_file).exists():
        path = tokenizer_file(options.vocab_file)
        merges = str(path.with_name("merges.txt"))
        if path.name == "vocab.json":
            inner = _reading(path, lambda: _byte_pair(path, _file("vocab_file", merges, "merges.txt")))
        else:
            inner = _tokenizer_json(path)
    else:
        inner = _from_hub(options.vocab_file or "gpt2")
    inner.add_special_tokens([PADDING])
    return FastTokenizer(inner, options.vocab_file or "gpt2", _folder(options))


def _tokenizer_json(path: Path) -> Any:
    from tokenizers import Tokenizer as Fast

    return _reading(path, lambda: Fast.from_file(str(path)))


def _from_hub(name: str) -> Any:
    from tokenizers import Tokenizer as Fast

    try:
        return Fast.from_pretrained(name)
    except Exception as error:  # network, Hub and file format raise exceptions without a common base class
        what = f"the tokenizer {name} could not be downloaded from the Hugging Face Hub: {_first_line(error)}"
        hint = "set vocab_file to a local folder with tokenizer.json, or with vocab.json and merges.txt"
        raise Problems(
            Problem(what, hint=hint, id="tokenizer-not-fetched", about=("tokenizer_type", "vocab_file"))
        ) from error


def _sentencepiece(options: TokenizerOptions) -> Tokenizer:
    path = _file("vocab_file", options.vocab_file, "a SentencePiece .model file")
    library = _library("sentencepiece", "SPMTokenizer")
    inner = _reading(path, lambda: library.SentencePieceProcessor(model_file=str(path)))
    return PieceTokenizer(inner, _folder(options))


def _tiktoken(options: TokenizerOptions) -> Tokenizer:
    library = _library("tiktoken", "TiktokenTokenizer")
    name = options.vocab_file or ""
    if name not in library.list_encoding_names():
        hint = f"use one of {', '.join(library.list_encoding_names())}"
        what = f"vocab_file ({name or 'not set'}) is not the name of a tiktoken encoding"
        raise Problems(
            Problem(what, hint=hint, id="tokenizer-unknown-encoding", about=("tokenizer_type", "vocab_file"))
        )
    return TiktokenTokenizer(library.get_encoding(name))


BUILDERS: dict[str, Callable[[TokenizerOptions], Tokenizer]] = {
    "GPT2BPETokenizer": _gpt2_bpe,
    "HFTokenizer": _hf,
    "HFGPT2Tokenizer": _hf_gpt2,
    "SPMTokenizer": _sentencepiece,
    # GPT-NeoX's character-level tokenizer: bytes, a vocabulary of 512, and id 0 (NUL) as end-of-document.
    "CharLevelTokenizer": lambda _: ByteTokenizer(vocab_size=CHAR_LEVEL, eod=0),
    "ByteLevelTokenizer": lambda _: ByteTokenizer(vocab_size=257, eod=256),
    "TiktokenTokenizer": _tiktoken,
}


def _folder(options: TokenizerOptions) -> Path | None:
    return folder_of(options.tokenizer_type, options.vocab_file)


def _file(parameter: str, path: str | None, what: str) -> Path:
    """Return the path of a required file; raise Problems if it is not set or missing. what: the expected file."""
    hint = _NO_FILE.format(parameter)
    if not path:
        what = f"{parameter} is not set, but this tokenizer_type needs {what}"
        raise Problems(Problem(what, hint=hint, id="vocabulary-not-named", about=("tokenizer_type", parameter)))
    if not Path(path).is_file():
        what = f"{parameter} ({path}) must be {what}, but there is no such file"
        raise Problems(Problem(what, hint=hint, id="vocabulary-missing", about=("tokenizer_type", parameter)))
    return Path(path)


_NO_FILE = "set {} to the path of such a file, or set tokenizer_type: ByteLevelTokenizer, which needs no file"


def _reading(path: Path, read: Callable[[], Any]) -> Any:
    """Return `read()`, with a library's error about the file turned into a problem."""
    try:
        return read()
    except Problems:
        raise
    except Exception as error:  # `tokenizers` raises bare Exception
        what = f"vocab_file ({path}) cannot be read: {_first_line(error)}"
        raise Problems(Problem(what, id="tokenizer-file-unreadable", about=("tokenizer_type", "vocab_file"))) from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _library(name: str, tokenizer_type: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        what = f"tokenizer_type ({tokenizer_type}) needs the Python package {name}, which is not installed"
        raise Problems(
            Problem(what, hint=f"run pip install {name}", id="package-missing", about=("tokenizer_type",))
        ) from error


def _boundaries(
    find: Callable[[str], int | None], name: str, folder: Path | None, otherwise: int | None = None
) -> tuple[int, int, frozenset[int]]:
    """Return `start`, `eod` and `ends` of a Tokenizer; raise Problems if no token ends a document.

    find: returns the id of a token. name: of the tokenizer. otherwise: as in `end_of_document`.
    """
    eod = end_of_document(folder, find, otherwise)
    if eod is None:
        hint = f"add one of {', '.join(END_OF_DOCUMENT)} to the vocabulary"
        what = f"{name} has no end-of-document token"
        raise Problems(Problem(what, hint=hint, id="tokenizer-without-end-token", about=("vocab_file",)))
    start = find(special_tokens(folder).texts.get("bos_token", ""))
    return eod if start is None else start, eod, frozenset(end_ids(folder)) - {eod}
