"""Are the files there that every rank will open? Asked before the ranks start, because then all of them would fail."""

from __future__ import annotations

import glob
import os
import shlex
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from neoxargs.problems import Problem
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules.data import listed

#: What NeoX's and Megatron's tools append to the name that a user gives a token file.
TAIL = "_text_document"
STDLIB = "python-stdlib"
#: Megatron's index of a token file begins so: magic, version, type of the ids, number of sequences, of document ends.
HEADER, MAGIC = struct.Struct("<9sQBQQ"), b"MMIDIDX\x00\x00"
#: Type of the ids -> bytes of one.
ITEM_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 8: 2}

TOKEN_FILES = (
    "train_data_paths", "valid_data_paths", "test_data_paths", "train_label_data_paths", "valid_label_data_paths",
    "test_label_data_paths", "pos_train_data_paths", "pos_valid_data_paths", "pos_test_data_paths",
    "neg_train_data_paths", "neg_valid_data_paths", "neg_test_data_paths",
)  # fmt: skip

#: What names data to train on.
SOURCES = ("data_path", "text_path", "train_data_paths", "pos_train_data_paths")
#: Tokenizers whose vocabulary is one file here, and not perhaps a name on a model hub.
ONE_FILE = ("SPMTokenizer", "HFTokenizer")


def missing_files(config: Config) -> list[Problem]:
    """Every data and tokenizer file that a parameter names and that is not there."""
    return [*_token_files(config), *_texts(config), *_absent_vocabulary(config)]


def certainly_missing(certain: Config, broken: frozenset[str]) -> list[Problem]:
    """The same of a configuration with problems: what is missing in any case."""
    read = {*SOURCES, "tokenizer_type", "vocab_file", "merge_file", "dataset_impl"}
    return [*missing_files(certain), *([] if read & broken else unnamed_files(certain))]


def unnamed_files(config: Config) -> list[Problem]:
    """What training needs and no parameter names: any data, the tokenizer's files."""
    return [*_nothing_to_train_on(config), *_unnamed_vocabulary(config)]


def _nothing_to_train_on(config: Config) -> Iterator[Problem]:
    if not any(config.get(name) for name in SOURCES) and config.data.dataset_impl != "online":
        hint = "write data_path: PREFIX for a token file, or text_path: FILE for text that is tokenised on first use"
        what = "there is nothing to train on: no data_path, text_path or train_data_paths"
        yield Problem(what, hint=hint, id="no-training-data", about=SOURCES)


def _token_files(config: Config) -> Iterator[Problem]:
    if not config.data.text_path:
        for prefix in _prefixes(config.get("data_path")):
            yield from _token_file(config, "data_path", prefix)
    for name in TOKEN_FILES:
        for prefix in listed(config.get(name)):
            yield from _token_file(config, name, prefix)


def _prefixes(data_path: str | list[str | float] | None) -> list[str]:
    """A `data_path` may be a list in which weights stand before the prefixes."""
    if isinstance(data_path, list):
        return [part for part in data_path if isinstance(part, str) and not _is_number(part)]
    return listed(data_path)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _token_file(config: Config, name: str, prefix: str) -> Iterator[Problem]:
    absent = [suffix for suffix in (".bin", ".idx") if not os.path.exists(prefix + suffix)]
    if not absent:
        yield from _mismatched(config, name, prefix)
        return
    what = f"{name}: there is no {' and no '.join(prefix + suffix for suffix in absent)}"
    hint = _token_file_hint(config, prefix, absent)
    yield Problem(what, config.source(name).where, hint, id="data-file-missing", about=(name,))


def _mismatched(config: Config, name: str, prefix: str) -> Iterator[Problem]:
    """The index ends with where the last sequence begins, so it says how long the other file is."""
    idx, size = Path(prefix + ".idx"), Path(prefix + ".bin").stat().st_size
    with idx.open("rb") as file:
        head = file.read(HEADER.size)
        if len(head) < HEADER.size or not head.startswith(MAGIC):
            return  # another program's format
        _, _, code, count, ends = HEADER.unpack(head)
        expected = HEADER.size + 12 * count + 8 * ends
        if idx.stat().st_size < expected:
            what = f"{name}: {idx} has {idx.stat().st_size:,} bytes instead of {expected:,}"
            hint = "half a copy? copy it once more"
            yield Problem(what, config.source(name).where, hint, id="data-file-damaged", about=(name,))
            return
        if not count or code not in ITEM_SIZES:
            return
        file.seek(HEADER.size + 4 * (count - 1))
        (length,) = struct.unpack("<i", file.read(4))
        file.seek(HEADER.size + 12 * count - 8)
        (begin,) = struct.unpack("<q", file.read(8))
    whole = begin + length * ITEM_SIZES[code]
    if size != whole:
        what = f"{name}: {prefix}.bin has {size:,} bytes, and its index speaks of {whole:,}"
        hint = "half a copy, or the files of two data sets"
        yield Problem(what, config.source(name).where, hint, id="data-file-damaged", about=(name,))


def _token_file_hint(config: Config, prefix: str, absent: list[str]) -> str:
    stem = prefix.removesuffix(".bin").removesuffix(".idx")
    candidates = [stem, prefix + TAIL, prefix.removesuffix(TAIL), *_near(prefix)]
    for candidate in dict.fromkeys(candidates):
        if candidate != prefix and all(os.path.exists(candidate + suffix) for suffix in (".bin", ".idx")):
            return f"write {candidate}"
    if len(absent) == 1:
        return "the two files belong together; copy the other one too"
    tokenizer = config.tokenizer
    named = {"vocab-file": tokenizer.vocab_file, "merge-file": tokenizer.merge_file}
    flags = [f" --{flag} {shlex.quote(value)}" for flag, value in named.items() if value]
    made = f"make it: python deepy.py data TEXT --output-prefix {prefix}"
    return f"{made} --tokenizer-type {tokenizer.tokenizer_type}{''.join(flags)}"


def _near(prefix: str) -> Iterable[str]:
    """Token files that begin like the missing one."""
    return sorted(path.removesuffix(".idx") for path in glob.glob(glob.escape(prefix) + "*.idx"))


def _texts(config: Config) -> Iterator[Problem]:
    texts = config.data.text_path or []
    for text in [texts] if isinstance(texts, str) else texts:
        path = os.path.expanduser(text)
        if text != STDLIB and not os.path.exists(path) and not glob.glob(path, recursive=True):
            hint = f"files, folders, patterns, or {STDLIB} for the running Python's own library"
            what = f"text_path: there is no {text}"
            yield Problem(what, config.source("text_path").where, hint, id="data-file-missing", about=("text_path",))


def _vocabulary_parameters(config: Config) -> tuple[str, ...]:
    kind = config.tokenizer.tokenizer_type
    return ("vocab_file", "merge_file") if kind == "GPT2BPETokenizer" else ("vocab_file",) if kind in ONE_FILE else ()


def _unnamed_vocabulary(config: Config) -> Iterator[Problem]:
    for name in _vocabulary_parameters(config):
        if not config.get(name):
            what = f"tokenizer_type {config.tokenizer.tokenizer_type} needs {name}"
            hint = "or write tokenizer_type: ByteLevelTokenizer, which needs no file"
            about = ("tokenizer_type", name)
            yield Problem(what, config.source("tokenizer_type").where, hint, id="vocabulary-not-named", about=about)


def _absent_vocabulary(config: Config) -> Iterator[Problem]:
    for name in _vocabulary_parameters(config):
        path = config.get(name)
        if path and not os.path.exists(path):
            what = f"{name}: there is no {path}"
            yield Problem(what, config.source(name).where, id="vocabulary-missing", about=(name,))
