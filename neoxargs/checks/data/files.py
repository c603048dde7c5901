"""Checks of the data and tokenizer files that every rank opens."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import itertools
import os
import shlex
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from neoxargs.base.problems import MAX_DRAWN, Problem, Problems, listed
from neoxargs.base.record import replace
from neoxargs.base.regular_files import is_special, read_regular
from neoxargs.checks.data.merges import unmerged
from neoxargs.config.config import Config
from neoxargs.facts import vocab
from neoxargs.facts.data import has_misplaced_weight, is_weight
from neoxargs.facts.model import vocabulary_rows
from neoxargs.files import chat_templates
from neoxargs.files.base_shapes import read_base_shapes
from neoxargs.files.prompts import read_prompts
from neoxargs.files.token_files import checksums, index, sources
from neoxargs.files.tokenizer_folder import end_of_document, folder_of
from neoxargs.resolve.yaml.nodes import format_node, node_of

#: Suffix that the tools of GPT-NeoX and Megatron-LM append to the prefix of a token file.
TOKEN_FILE_SUFFIX = "_text_document"
#: Files and folders that are searched at most for one that a pattern matches.
MAX_SEARCHED = 50_000
#: Suffixes of the two files that a token file consists of.
SUFFIXES = (".bin", ".idx")
#: More missing token files of one parameter are one problem.
MANY_MISSING = 3
STDLIB = "python-stdlib"
#: Number of token ids of a file, from several of its parts, that are compared with the size of the embedding.
EXAMINED = 1 << 17
#: Bytes of token files that a check reads to compare them with their checksums, in a few hundredths of a second.
READ_AT_MOST = 1 << 24

LABELS_HINT = "deepy data --chat writes a token file together with its labels"
#: Tokenizers whose `vocab_file` is always a local file; for the others it may be a name on a model hub.
LOCAL_VOCABULARY = ("SPMTokenizer", "HFTokenizer")
VOCABULARY_FILES = {
    "GPT2BPETokenizer": "a vocab.json (token: id)",
    "HFTokenizer": "a tokenizer.json",
    "SPMTokenizer": "a SentencePiece .model file",
}


def missing_files(config: Config) -> list[Problem]:
    """Return a problem for each file that a parameter names and that is missing or damaged."""
    checks = (_token_files, _texts, _absent_vocabulary, _vocabulary_contents, _absent_tasks)
    return config.found(*(partial(check, config) for check in checks))


def unnamed_files(config: Config) -> list[Problem]:
    """Return the data and the tokenizer's files that training needs and that no parameter names."""
    return config.found(lambda: _no_data(config), lambda: _unnamed_vocabulary(config))


def _no_data(config: Config) -> Iterator[Problem]:
    if not any(config.get(name) for name in sources.TRAINING_DATA) and config.data.dataset_impl != "online":
        hint = "set data_path: PREFIX for a token file, or text_path: FILE for text that is tokenised on first use"
        what = "there is no training data: none of data_path, text_path and train_data_paths is set"
        yield Problem(what, hint=hint, id="no-training-data", about=sources.TRAINING_DATA)


def _unnamed_vocabulary(config: Config) -> Iterator[Problem]:
    for name in _vocabulary_parameters(config):
        if not config.get(name):
            what = f"tokenizer_type ({config.tokenizer.tokenizer_type}) needs {name}"
            hint = f"set {name}, or set tokenizer_type: ByteLevelTokenizer, which needs no file"
            place, about = config.source("tokenizer_type").where, ("tokenizer_type", name)
            yield Problem(what, place, hint, id="vocabulary-not-named", about=about)


def unreadable_base_shapes(config: Config) -> list[Problem]:
    """Return the problem of a `base_shapes_file` that muP cannot read."""
    mup = config.mup
    try:
        # A run with `save_base_shapes` writes the file.
        if mup.use_mup and mup.base_shapes_file and not mup.save_base_shapes:
            read_base_shapes(mup.base_shapes_file, config.place("base_shapes_file"))
    except Problems as found:
        return found.problems
    return []


def _token_files(config: Config) -> list[Problem]:
    limit = _limit(config)
    lists = (partial(_datasets, config, name, limit) for name in _parameters(config))
    return config.found(partial(_data_path, config, limit), *lists)


def _data_path(config: Config, limit: int) -> Iterator[Problem]:
    if config.data.text_path:
        return
    if has_misplaced_weight(config.get("data_path") or ()):
        what = f"data_path ({format_node(node_of(config.get('data_path')), limit=120)}) must have a weight before each "
        what += "prefix, or no weights"
        hint = "write [WEIGHT, PREFIX, WEIGHT, PREFIX], such as data_path: [0.7, web, 0.3, books]"
        yield Problem(what, config.place("data_path"), hint, id="data-weight-misplaced", about=("data_path",))
    yield from _datasets(config, "data_path", limit)


def unread(config: Config) -> dict[str, int]:
    """Return prefix -> bytes that a run compares with their checksums, or records, and that a check does not read."""
    limit = _limit(config)
    found = {prefix: checksums.changes(prefix, limit).unread for _, prefix in _named(config) if not _absent(prefix)}
    return {prefix: size for prefix, size in found.items() if size}


def _limit(config: Config) -> int:
    """Return the size up to which a token file is read completely."""
    return READ_AT_MOST // (len(list(_named(config))) or 1)


def _named(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the parameters that name token files, each with a prefix."""
    if config.broken.isdisjoint(("text_path", "data_path")) and not config.data.text_path:
        yield from sources.named_token_files(config.get, "data_path")
    for name in _parameters(config):
        yield from sources.named_token_files(config.get, name)


def _parameters(config: Config) -> list[str]:
    rewarded = "train_impl" not in config.broken and config.post_training.train_impl == "kto"
    return list(filter(config.knows, (*sources.TOKEN_FILES, "validation", *(sources.REWARD_FILES if rewarded else ()))))


def _datasets(config: Config, name: str, limit: int) -> Iterator[Problem]:
    """Check the token files of a parameter; many that are all missing are one problem."""
    paths = [prefix for _, prefix in sources.named_token_files(config.get, name)]
    absent = [prefix for prefix in dict.fromkeys(paths) if len(_absent(prefix)) == len(SUFFIXES)]
    # To search a folder for each of thousands of files would take minutes.
    unknown = {prefix for prefix in absent[:MAX_DRAWN] if not _similar_file(prefix)} | {*absent[MAX_DRAWN:]}
    missing = [prefix for prefix in paths if prefix in unknown]
    together = len(missing) > MANY_MISSING
    if together:
        what = f"{name}: there are no .bin and .idx files for {len(missing)} of {len(paths)} paths: "
        hint = _missing_file_hint(config, name, "PATH").replace("create it", "create each")
        place = config.source(name).where
        yield Problem(what + listed(missing, "and", most=3), place, hint, id="data-file-missing", about=(name,))
    for prefix in paths:
        if not (together and prefix in unknown):
            yield from config.found(partial(_token_file, config, name, prefix, limit))


def _token_file(config: Config, name: str, prefix: str, limit: int) -> Iterator[Problem]:
    absent, where = _absent(prefix), config.source(name).where
    if not absent:
        # The record first: it tells which of the two files is damaged.
        damage = checksums.changes(prefix, limit).problems
        if not damage and (mismatch := _mismatch(prefix, limit)):
            what, hint = mismatch
            damage = [Problem(f"{name}: {what}", hint=hint, id="data-file-damaged")]
        damage = [replace(each, where=where, about=(name,)) for each in damage]
        yield from damage or _other_content(config, name, prefix)
        return
    sets = sources.sets_with(prefix, config.get) if name == "validation" else []
    what = f"{', '.join((name, *sets))}: there is no {' and no '.join(prefix + suffix for suffix in absent)}"
    if similar := _similar_file(prefix):
        hint = f"did you mean {similar}?"
    elif len(absent) == 1:
        hint = f"copy {prefix}{absent[0]} too: every token file consists of a .bin and an .idx file"
    else:
        hint = _missing_file_hint(config, name, prefix)
    yield Problem(what, where, hint, id="data-file-missing", about=(name,))


def _absent(prefix: str) -> list[str]:
    return [suffix for suffix in SUFFIXES if not os.path.isfile(prefix + suffix)]


def _mismatch(prefix: str, limit: int) -> tuple[str, str] | None:
    """Return how the sizes of both files differ from the index, whose last sequence gives that of .bin, and a hint.

    So does the sum of the lengths, which may not be what the last sequence says; of an index with more than `limit`
    bytes of lengths, it is not computed, and a file of another program is among those that `unread` names.
    """
    idx, size = Path(prefix + ".idx"), Path(prefix + ".bin").stat().st_size
    with idx.open("rb") as file:
        head = file.read(index.HEADER.size)
        if not head and not size:
            return None
        if not head.startswith(index.MAGIC) or len(head) < index.HEADER.size:
            what = f"{idx} is not a Megatron index, which starts with {index.MAGIC[:7].decode()}"
            return what, "the file is incomplete or of another program; copy it again, or tokenise the text again"
        _, _, code, count, ends = index.HEADER.unpack(head)
        expected = index.size_of(count, ends)
        if idx.stat().st_size < expected:
            what = f"{idx} has {idx.stat().st_size:,} bytes, but should have {expected:,} according to its header"
            return what, "the file is incomplete; copy it again, or tokenise the text again"
        if not count or code not in index.ITEM_SIZES:
            return None
        # The length and the offset of the last sequence, without reading the index, which may have gigabytes.
        file.seek(index.HEADER.size + 4 * (count - 1))
        (length,) = struct.unpack("<i", file.read(4))
        file.seek(index.HEADER.size + 12 * count - 8)
        (begin,) = struct.unpack("<q", file.read(8))
    expected = begin + length * index.ITEM_SIZES[code]
    if size == expected and 4 * count <= limit:
        expected = sum(index.some_lengths(prefix, count)) * index.ITEM_SIZES[code]
    if size == expected:
        return None
    what = f"{prefix}.bin has {size:,} bytes, but should have {expected:,} according to its .idx file"
    return what, "the .bin file is incomplete or belongs to a different .idx file; copy both files again"


def _other_content(config: Config, name: str, prefix: str) -> Iterator[Problem]:
    """Yield the problem of labels in place of text, or of a tokenizer whose token ids have other meanings."""
    if name in sources.REWARD_FILES:  # not made by a tokenizer
        return
    is_label = sources.is_label_file(name, prefix, config.get)
    if index.begins_with_label(prefix) and not is_label:
        what = f"{name}: {prefix} is a label file: it contains {index.IGNORED}, which is not a token"
        own = prefix.removesuffix("_label")
        hint = f"did you mean {own}?" if own != prefix and os.path.exists(f"{own}.bin") else ""
        yield Problem(what, config.source(name).where, hint, id="labels-as-data", about=(name,))
        return
    made_by = None if is_label else index.tokenised_by(prefix)
    other = list(_other_tokenizer(config, name, prefix, made_by)) if made_by else []
    found = other or list(_unknown_ids(config, name, prefix, is_label))
    yield from found if found or made_by or is_label else _unmerged(config, name, prefix)


def _unknown_ids(config: Config, name: str, prefix: str, is_label: bool) -> Iterator[Problem]:
    """Yield the error of a token id beyond the embedding, or a warning about ids that are not the tokenizer's."""
    ids, where, rows = _ids(prefix), config.source(name).where, vocabulary_rows(config)
    tokens = vocab.vocabulary_size(config.tokenizer.tokenizer_type, config.tokenizer.vocab_file)
    if rows and (wrong := checksums.first_beyond(prefix, ids, rows, index.IGNORED if is_label else 0, name)):
        yield replace(wrong, where=where)
        return
    largest = index.largest_of_type(prefix)
    if tokens and ids and ids[1].id >= tokens:
        what = f"{name}: {prefix}.bin contains token id {ids[1].id}"
    elif tokens and largest and largest < tokens - 1:
        what = f"{name}: the token ids in {prefix}.bin are stored as numbers up to {largest:,}"
    else:
        return
    what, about = f"{what}, but the tokenizer has {tokens:,} tokens", (name, "tokenizer_type")
    yield Problem(what, where, checksums.SAME_TOKENIZER, severity="warning", id="data-other-tokenizer", about=about)


def _unmerged(config: Config, name: str, prefix: str) -> Iterator[Problem]:
    """Yield a warning about tokens that the tokenizer of the configuration cannot have left beside each other."""
    if share := unmerged(config, prefix):
        what = f"{name}: {share:.1%} of the neighbours within words in {prefix}.bin are a single token of the tokenizer"
        where, about = config.source(name).where, (name, "vocab_file")
        yield Problem(what, where, checksums.SAME_TOKENIZER, severity="warning", id="data-other-tokenizer", about=about)


def _ids(prefix: str) -> tuple[checksums.Extreme, checksums.Extreme] | None:
    """Return the smallest and the largest token id of a file as recorded, otherwise those of some of its parts."""
    record = checksums.recorded(prefix).get(".bin")
    if record and record.digest.size == os.path.getsize(prefix + ".bin"):
        return record.ids
    found = []
    for begin, part in index.some_ids(prefix, EXAMINED):
        ids = list(part)
        found += [checksums.Extreme(id_, begin + ids.index(id_)) for id_ in (min(ids), max(ids))]
    return (min(found), max(found)) if found else None


def _other_tokenizer(config: Config, name: str, prefix: str, made_by: index.Tokenised) -> Iterator[Problem]:
    kind, hint = config.tokenizer.tokenizer_type, checksums.SAME_TOKENIZER
    if made_by.tokenizer_type != kind and not {made_by.tokenizer_type, kind} <= vocab.SAME_VOCABULARY:
        why = f"by {made_by.tokenizer_type}, but tokenizer_type is {kind}"
        hint = f"set tokenizer_type: {made_by.tokenizer_type}, or tokenise the text again"
    else:
        why = _other_vocabulary(config, made_by)
        yield from () if why else _other_end(config, name, prefix, made_by)
    if why:
        what, about = f"{name}: {prefix} was tokenised {why}", (name, "tokenizer_type")
        yield Problem(what, config.source(name).where, hint, id="data-other-tokenizer", about=about)


def _other_end(config: Config, name: str, prefix: str, made_by: index.Tokenised) -> Iterator[Problem]:
    """Yield a warning if documents end with another token than that of the tokenizer."""
    try:
        end = end_of_document_token(config)
    except Problems:  # reported once, not for each token file
        return
    if end is not None and made_by.eod not in (None, end):
        what = f"{name}: the documents of {prefix} end with token {made_by.eod}, but the tokenizer's end is token {end}"
        hint = "tokenise the text again, or set vocab_file to the tokenizer that made the file; otherwise the model "
        hint += "does not learn the end at which generation stops"
        about = (name, "vocab_file")
        yield Problem(what, config.source(name).where, hint, severity="warning", id="data-other-end", about=about)


def _other_vocabulary(config: Config, made_by: index.Tokenised) -> str:
    """Return how the vocabulary of a token file differs from that of the configuration, or ""."""
    kind, file = config.tokenizer.tokenizer_type, config.tokenizer.vocab_file
    recorded = made_by.vocab_file_hash if made_by.tokenizer_type == kind else ""
    if recorded and vocab.vocab_file_hash(file) in (recorded, ""):
        return ""
    size = vocab.vocabulary_size(kind, file)
    if size is not None and size != made_by.vocab_size:
        return f"with a vocabulary of {made_by.vocab_size:,} tokens, but the tokenizer's vocabulary has {size:,}"
    if recorded and vocab.vocabulary_hashes(kind, file).vocabulary_hash != made_by.vocabulary_hash:
        return f"with a different vocabulary than that of vocab_file ({file})"
    return ""


def _similar_file(prefix: str) -> str:
    """Return the prefix of an existing token file that was probably meant, or ""."""
    # Frequent mistakes: a file name in place of the prefix, and the suffix of the tools left out or added.
    stem = prefix.removesuffix(".bin").removesuffix(".idx")
    longer = sorted(path.removesuffix(".idx") for path in glob.glob(glob.escape(prefix) + "*.idx"))
    candidates = [stem, prefix + TOKEN_FILE_SUFFIX, prefix.removesuffix(TOKEN_FILE_SUFFIX), *longer]
    return next((candidate for candidate in candidates if candidate != prefix and not _absent(candidate)), "")


def _missing_file_hint(config: Config, name: str, prefix: str) -> str:
    if len(paths := prefix.split()) > 1 and all("/" in path or is_weight(path) for path in paths):
        return f"to blend datasets, write a list: [{', '.join(paths)}]"
    if name in sources.REWARD_FILES:
        return sources.REWARDS_HINT
    labels = name.replace("_data_paths", "_label_data_paths")
    has_labels = sources.is_label_file(name, prefix, config.get) or (labels != name and config.get(labels))
    if has_labels:
        return LABELS_HINT
    tokenizer = config.tokenizer
    named = {"vocab-file": tokenizer.vocab_file, "merge-file": tokenizer.merge_file}
    flags = [f" --{flag} {shlex.quote(value)}" for flag, value in named.items() if value]
    command = f"create it with: deepy data TEXT --output-prefix {shlex.quote(prefix)}"
    return f"{command} --tokenizer-type {tokenizer.tokenizer_type}{''.join(flags)}"


def _texts(config: Config) -> Iterator[Problem]:
    texts = config.data.text_path or []
    for text in [texts] if isinstance(texts, str) else texts:
        path, where, about = os.path.expanduser(text), config.source("text_path").where, ("text_path",)
        if text == STDLIB or os.path.isfile(path) or os.path.isdir(path):
            continue
        if is_special(path):
            what = f"text_path ({text}): this is a pipe or a device, not a regular file"
            yield Problem(what, where, id="data-file-missing", about=about)
        elif (found := _has_match(path)) is None:
            what = f"text_path ({text}): none of the first {MAX_SEARCHED:,} files and folders matches this pattern, "
            what += "and the others were not searched"
            hint = "begin the pattern with a folder that contains less"
            yield Problem(what, where, hint, severity="warning", id="check-skipped", about=about)
        elif not found:
            hint = f"set text_path to files, folders, glob patterns, or {STDLIB} (Python's standard library)"
            what = f"text_path ({text}): there is no such file or folder"
            yield Problem(what, where, hint, id="data-file-missing", about=about)


def _has_match(pattern: str) -> bool | None:
    """Return whether a file or folder matches a glob pattern; None if that is not known after MAX_SEARCHED entries.

    A pattern can select everything on a machine, whose search would take hours.
    """
    try:
        return any(True for _ in _matches("", Path(pattern).parts, itertools.count()))
    except (_NotFoundSoon, RecursionError):
        return None


class _NotFoundSoon(Exception):
    """More files and folders have been searched than MAX_SEARCHED."""


def _matches(folder: str, parts: Sequence[str], searched: Iterator[int]) -> Iterator[str]:
    """Yield the paths in a folder that match the parts of a pattern, as `glob` does."""
    head, *rest = parts
    if not glob.has_magic(head):
        path = os.path.join(folder, head)
        if os.path.lexists(path):
            yield from _matches(path, rest, searched) if rest else [path]
        return
    if head == "**" and rest:
        yield from _matches(folder, rest, searched)
    below = parts if head == "**" and rest else rest
    for entry in _entries(folder, searched):
        named = head == "**" or fnmatch.fnmatchcase(entry.name, head)
        if named and (head.startswith(".") or not entry.name.startswith(".")):
            if not below:
                yield entry.path
            elif entry.is_dir():
                yield from _matches(entry.path, below, searched)


def _entries(folder: str, searched: Iterator[int]) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
        for entry in entries:
            if next(searched) >= MAX_SEARCHED:
                raise _NotFoundSoon
            yield entry


def _vocabulary_parameters(config: Config) -> tuple[str, ...]:
    kind = config.tokenizer.tokenizer_type
    if kind == "GPT2BPETokenizer":
        return ("vocab_file", "merge_file")
    return ("vocab_file",) if kind in LOCAL_VOCABULARY else ()


def _absent_vocabulary(config: Config) -> Iterator[Problem]:
    for name in _vocabulary_parameters(config):
        path = config.get(name)
        if path and (is_special(path) or not os.path.exists(path)):
            absent = "this is a pipe or a device, not a regular file" if is_special(path) else "there is no such file"
            what = f"{name} ({path}): {absent}"
            yield Problem(what, config.source(name).where, id="vocabulary-missing", about=(name,))


def _vocabulary_contents(config: Config) -> Iterator[Problem]:
    """Yield the problem of a vocabulary file that the tokenizer cannot read, or of a folder with an unknown end token.

    The token is unknown if it is not in the vocabulary, or if a file of the folder cannot be read.
    """
    path = config.tokenizer.vocab_file if "vocab_file" in _vocabulary_parameters(config) else ""
    if not path or is_special(path) or not os.path.exists(path):
        return
    kind, where = config.tokenizer.tokenizer_type, config.source("vocab_file").where
    if not vocab.has_format(kind, path):
        inside = os.path.join(path, "tokenizer.json")
        found = "is a folder" if os.path.isdir(path) else "has another format"
        what = f"vocab_file ({path}) must be {VOCABULARY_FILES[kind]} for tokenizer_type {kind}, but {found}"
        hint = f"did you mean {inside}?" if os.path.exists(inside) else "set vocab_file to such a file"
        yield Problem(what, where, hint, id="tokenizer-file-unreadable", about=("vocab_file", "tokenizer_type"))
    try:
        end_of_document_token(config)
    except Problems as problems:
        yield from (replace(problem, where=where) for problem in problems.problems)


def end_of_document_token(config: Config) -> int | None:
    """Return the id of the end-of-document token; None if it cannot be known without the tokenizer. Raises Problems."""
    kind, file = config.tokenizer.tokenizer_type, config.tokenizer.vocab_file
    if kind in vocab.FIXED_ENDS:
        return vocab.FIXED_ENDS[kind]
    ids = vocab.ids_of_tokens(kind, file)
    return end_of_document(folder_of(kind, file), ids.get) if ids else None


def _absent_tasks(config: Config) -> Iterator[Problem]:
    folder = config.generation.eval_tasks_path
    if folder and not os.path.isdir(folder):
        what = f"eval_tasks_path ({folder}): there is no such folder"
        hint = "set eval_tasks_path to a folder with task YAML files, or remove it"
        where = config.source("eval_tasks_path").where
        yield Problem(what, where, hint, id="evaluation-task-folder-missing", about=("eval_tasks_path",))


def unreadable_prompts(config: Config, name: str) -> list[Problem]:
    """Return the problem of the prompts that are read from the file that a parameter names."""
    try:
        if (path := config.get(name)) and is_special(path):
            what = f"{name} ({path}) is a pipe or a device, not a regular file"
            raise Problems(Problem(what, config.place(name), id="prompt-file-unreadable", about=(name,)))
        if path:
            read_prompts(name, path, config.place(name))
    except Problems as found:
        return found.problems
    return []


def unusable_chat_template(config: Config) -> list[Problem]:
    """Return why the tokenizer has no template for a conversation, or not the one that is named."""
    name, requested = "chat_template", config.generation.chat_template
    tokenizer = config.tokenizer
    if not requested and tokenizer.vocab_file and not Path(tokenizer.vocab_file).exists():  # a problem of its own
        return []
    try:
        chat_templates.choose(chat_templates.read(tokenizer.tokenizer_type, tokenizer.vocab_file), requested, name)
    except Problems as found:
        place = config.place(name) or config.place("text_gen_type")
        return [replace(problem, where=problem.where or place, about=(name,)) for problem in found.problems]
    return []


def empty_lines(config: Config) -> Iterator[Problem]:
    """Yield the warning of empty lines in `sample_input_file`: after them, the n-th sample is not that of line n."""
    path = config.generation.sample_input_file or ""
    try:
        lines = read_regular(path).decode().rstrip().splitlines()
    except (OSError, UnicodeDecodeError):  # a problem of its own, see `unreadable_prompts`
        return
    if empty := [str(number) for number, line in enumerate(lines, start=1) if not line.strip()]:
        numbers = f"empty lines ({listed(empty, 'and', most=3)})"
        what, about = f"sample_input_file ({path}): {numbers} are skipped, without a sample", ("sample_input_file",)
        yield Problem(what, config.place(*about), severity="warning", id="prompt-lines-empty", about=about)
