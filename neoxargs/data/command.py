"""`deepy data TEXT ...`: tokenise text into a Megatron token file, once, before any rank starts.

`<prefix>.json` beside the token file records what it was made from, so that it is made again when the text or the
tokenizer changes, and statistics such as the unigram entropy: the loss of a model that knows only the frequency of
each token.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neoxargs.base.problems import Problem, Problems
from neoxargs.data import mask_before, text_files
from neoxargs.data.encode import Recipe, encode, stored_type
from neoxargs.data.exit_code import exit_code_of
from neoxargs.data.in_use import locked
from neoxargs.data.meter import Meter
from neoxargs.data.neox_flags import add_neox_flags, inputs, refused
from neoxargs.data.parallel import worker_count
from neoxargs.data.tokenizer import BUILDERS, Tokenizer, build_tokenizer
from neoxargs.facts.vocab import vocabulary_hashes
from neoxargs.files.token_files import writer as indexed
from neoxargs.files.token_files.made_from import (
    label_prefix,
    refuse_other_files,
    sidecar,
    write_json,
    wrong_prefix,
)
from neoxargs.files.tokenizer_folder import folder_of, special_tokens
from neoxargs.processes import interrupts

#: Version of the output; increase it when the same text and recipe would give different files.
FORMAT = 1


@dataclass(frozen=True)
class Summary:
    """Statistics of a token file, as `<prefix>.json` stores them."""

    documents: int
    sequences: int
    """More than `documents` if long files were cut into pieces (`text_files.piece_size`)."""
    tokens: int
    text_bytes: int
    """Size of the text in UTF-8."""
    bytes_per_token: float
    unigram_entropy: float
    """Entropy of the token frequencies, in nats per token."""
    tokenizer_type: str
    vocab_size: int
    fingerprint: str
    """Hash of the text files and the recipe (see `fingerprint`)."""
    vocab_file_hash: str = ""
    vocabulary_hash: str = ""
    """See `VocabularyHashes`; earlier versions recorded neither."""
    eod: int | None = None
    """The token at the end of each document; None if there is none. Earlier versions did not record it."""


def build(texts: Sequence[str], recipe: Recipe, prefix: Path, workers: int | None = None) -> Summary:
    """Tokenise texts into `<prefix>.bin`, `.idx` and `.json`; the result does not depend on `workers`.

    workers: number of processes; None chooses one per core, fewer for little text.
    Raises Problems if text is missing, empty or unreadable, or the tokenizer cannot be built.
    """
    refuse_other_files(prefix)
    tokenizer, files = _tokenizer_and_files(recipe, texts)
    total = sum(file.stat().st_size for file in files)
    counts, text_bytes = np.zeros(tokenizer.vocab_size, dtype=np.int64), 0
    with indexed.new_file(prefix, stored_type(tokenizer.vocab_size)) as writer:
        with Meter(total, f"tokenising {total / 1e6:.1f} MB") as meter:
            for chunk in encode(text_files.documents(files, recipe.json_key), recipe, worker_count(total, workers)):
                writer.add(chunk.ids, chunk.lengths, chunk.last)
                counts += np.bincount(chunk.ids, minlength=tokenizer.vocab_size)
                text_bytes += chunk.text_bytes
                meter.advance(chunk.size)
        if not writer.documents:
            raise Problems(
                Problem(
                    f"{', '.join(texts)}: there is no text to tokenise, because every document is empty",
                    id="text-empty",
                )
            )
        eod = tokenizer.eod if recipe.append_eod else None
        summary = _summary(writer, counts, text_bytes, recipe, fingerprint(files, recipe), eod)
        # Before the files change, so that no summary describes another token file.
        sidecar(prefix).unlink(missing_ok=True)
    write_json(sidecar(prefix), asdict(summary))
    return summary


def _tokenizer_and_files(recipe: Recipe, texts: Sequence[str]) -> tuple[Tokenizer, list[Path]]:
    """Return the tokenizer and the text files; raise Problems with the problems of both."""
    problems: list[Problem] = []
    tokenizer, files = None, []
    try:
        tokenizer = build_tokenizer(recipe)
    except Problems as error:
        problems += error.problems
    try:
        files = text_files.find(texts)
    except Problems as error:
        problems += error.problems
    if tokenizer is None or problems:
        raise Problems(problems)
    return tokenizer, files


def _summary(
    writer: indexed.Writer,
    counts: NDArray[np.int64],
    text_bytes: int,
    recipe: Recipe,
    fingerprint: str,
    eod: int | None,
) -> Summary:
    tokens = int(counts.sum())
    return Summary(
        documents=writer.documents,
        sequences=len(writer.lengths),
        tokens=tokens,
        text_bytes=text_bytes,
        bytes_per_token=text_bytes / tokens,
        unigram_entropy=unigram_entropy(counts),
        tokenizer_type=recipe.tokenizer_type,
        vocab_size=len(counts),
        fingerprint=fingerprint,
        eod=eod,
        **vocabulary_hashes(recipe.tokenizer_type, recipe.vocab_file)._asdict(),
    )


def unigram_entropy(counts: NDArray[np.int64]) -> float:
    """Entropy of the token frequencies, in nats per token. counts: occurrences of each token id."""
    frequencies = counts[counts > 0] / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum())


def up_to_date(texts: Sequence[str], recipe: Recipe, prefix: Path) -> Summary | None:
    """Return the summary of the token file if it was made from the same files with the same recipe, otherwise None."""
    summary = summary_of(prefix)
    return summary if summary and summary.fingerprint == fingerprint(text_files.find(texts), recipe) else None


def summary_of(prefix: str | Path) -> Summary | None:
    """Return the summary beside a token file; None if it is missing or another program wrote the token file."""
    prefix = Path(prefix)
    try:
        values = json.loads(sidecar(prefix).read_text())
        return Summary(**values) if indexed.exists(prefix) else None
    except (OSError, ValueError, TypeError):
        return None


def fingerprint(files: Sequence[Path], recipe: Recipe) -> str:
    """Hash of the recipe and of the names, sizes and modification times of the text and tokenizer files."""
    made_from = [identity(file) for file in files]
    tokenizer = [identity(Path(file)) for file in (recipe.vocab_file, recipe.merge_file) if file]
    # Named because earlier versions read these files as plain text.
    others = [file for file in files if not file.name.endswith(text_files.COMMON_JSON_LINES)]
    lines = [file.name for file in others if text_files.is_json_lines(file, recipe.json_key)]
    end = special_tokens(folder_of(recipe.tokenizer_type, recipe.vocab_file)).end
    content = json.dumps([FORMAT, made_from, tokenizer, asdict(recipe), *lines, *([{"eos_token": end}] if end else [])])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def identity(file: Path) -> tuple[str, int, int]:
    """Return what changes when a file does."""
    if not file.exists():  # vocab_file may be the name of a tokenizer instead of a path
        return str(file), 0, 0
    status = file.stat()
    return str(file.resolve()), status.st_size, status.st_mtime_ns


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deepy data",
        description="Tokenise text, and write a token file (.bin and .idx) for `data_path`.",
        epilog="A document is one line of a JSON-lines file (.jsonl, .ndjson, or .json with one object per line; "
        "also compressed as .gz or .zst), or the full text of any other file. "
        "For conversations, with labels for instruction tuning, see: deepy data --chat --help. "
        "To compare token files with their checksums, to count their tokens or to merge them, see: "
        "deepy data --verify --help",
    )
    add = parser.add_argument
    add("texts", nargs="*", metavar="TEXT", help="tokenise a file, a folder, the files that match a pattern, or "
        f"Python's standard library ({text_files.STDLIB})")  # fmt: skip
    add(
        "--text-path",
        nargs="+",
        default=[],
        metavar="TEXT",
        help="same as TEXT, named after the parameter text_path",
    )
    add("--output-prefix", required=True, metavar="PREFIX", help="write PREFIX.bin, PREFIX.idx and PREFIX.json")
    add("--tokenizer-type", default="GPT2BPETokenizer", choices=list(BUILDERS), metavar="NAME",
        help=f"use one of {', '.join(BUILDERS)} (default: %(default)s)")  # fmt: skip
    add(
        "--vocab-file",
        metavar="FILE",
        help="read the tokenizer's vocabulary from FILE: vocab.json, tokenizer.json or a .model file",
    )
    add("--merge-file", metavar="FILE", help="read GPT2BPETokenizer's merges from FILE (merges.txt)")
    add("--append-eod", action=argparse.BooleanOptionalAction, default=True,
        help="append the end-of-document token to each document (default: on)")  # fmt: skip
    add("--mask-before-token", metavar="ID,ID", help="also write PREFIX_label, with labels that exclude the beginning "
        "of each document from the loss, up to and including this sequence of token ids")  # fmt: skip
    add(
        "--json-key",
        default="text",
        metavar="KEY",
        help="read the text of each JSON line from KEY (default: %(default)s)",
    )
    add(
        "--workers",
        type=int,
        metavar="N",
        help="use N processes (default: one per core, or fewer if there is little text)",
    )
    add(
        "--if-missing",
        action="store_true",
        help="do nothing if PREFIX was written from the same text with the same tokenizer",
    )
    add_neox_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `deepy data`; return 0, 1 after printing problems, 130 after Ctrl-C, or 143 after SIGTERM."""
    args = parser().parse_args(argv)
    return exit_code_of(
        lambda: _run(args),
        lambda problems: print(as_flags(str(problems)), file=sys.stderr),
        lambda stop: interrupts.report_step(f"{Path(args.output_prefix)} has not been written", stop),
    )


def _run(args: argparse.Namespace) -> None:
    key = args.jsonl_keys[0] if args.jsonl_keys else args.json_key
    recipe = Recipe(args.tokenizer_type, args.vocab_file, args.merge_file, args.append_eod, key)
    texts, prefix = [*args.texts, *args.text_path, *inputs(args)], Path(args.output_prefix)
    started = time.perf_counter()
    if problems := [*refused(args), *_wrong_options(args)]:
        raise Problems(problems)
    existing = up_to_date(texts, recipe, prefix) if args.if_missing else None
    delimiter = mask_before.parse(args.mask_before_token) if args.mask_before_token else ()
    if delimiter:
        refuse_other_files(label_prefix(prefix))
    if existing and (not delimiter or mask_before.is_up_to_date(prefix, delimiter, existing.fingerprint)):
        summary = existing  # also in a folder that this user cannot write to
    else:
        with locked(prefix, wait=args.if_missing):
            # Again: another command may have written the files meanwhile.
            existing = up_to_date(texts, recipe, prefix) if args.if_missing else None
            if not existing:
                warn_of_left_out(texts)
            summary = existing or build(texts, recipe, prefix, args.workers)
            if delimiter and not (existing and mask_before.is_up_to_date(prefix, delimiter, summary.fingerprint)):
                mask_before.write(prefix, delimiter, summary.fingerprint)
    if existing:
        done = f"{prefix} is up to date: {existing.tokens:,} tokens, from the same text with the same tokenizer"
    else:
        done = summary_text(summary, args.output_prefix, time.perf_counter() - started, has_labels=bool(delimiter))
    print(done, flush=True)


def warn_of_left_out(texts: Sequence[str], endings: tuple[str, ...] = text_files.FOLDER_ENDINGS) -> None:
    """Print warnings about given files that are not read."""
    if warnings := list(text_files.left_out(texts, endings)):
        print(Problems(warnings), file=sys.stderr, flush=True)


def _wrong_options(args: argparse.Namespace) -> Iterator[Problem]:
    if args.workers is not None and args.workers < 1:
        hint = "remove --workers to use one process per core"
        yield Problem(f"--workers ({args.workers}) must be at least 1", hint=hint, id="data-option-invalid")
    yield from wrong_prefix(args.output_prefix)


def as_flags(message: str) -> str:
    """Replace the names of parameters in a message by this command's flags: `vocab_file` by `--vocab-file`."""
    names = r"(?<![\w/.-])(tokenizer_type(?::(?= \w))?|vocab_file|merge_file)(?![\w/.])"
    return re.sub(names, lambda match: f"--{match[1].rstrip(':').replace('_', '-')}", message)


def summary_text(summary: Summary, prefix: str, seconds: float, has_labels: bool = False) -> str:
    """Return the lines that `deepy data` prints about a new token file."""
    return "\n".join(
        (
            f"documents  {summary.documents:,} in {summary.sequences:,} sequences",
            f"tokens     {summary.tokens:,}, {summary.bytes_per_token:.2f} bytes per token",
            f"tokenizer  {summary.tokenizer_type}, vocabulary of {summary.vocab_size:,} tokens",
            f"entropy    {summary.unigram_entropy:.3f} nats per token (unigram)",
            f"time       {seconds:.1f} s, {summary.text_bytes / 1e6 / seconds:.1f} MB/s",
            f"to use it  data_path: {prefix}"
            if not has_labels
            else f'to use it  train_data_paths: ["{prefix}"]\n           train_label_data_paths: ["{prefix}_label"]',
        )
    )


if __name__ == "__main__":
    sys.exit(main())
