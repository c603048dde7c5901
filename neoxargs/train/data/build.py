"""`deepy data TEXT ...`: text to a Megatron token file, once, before any rank starts.

`<prefix>.json` stands beside the token file: what it was made from, so that it is made again when the text
or the tokenizer changes, and what is in it, such as the unigram entropy, the loss of a model that knows only
how often each token occurs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neoxargs.problems import Problem, Problems
from neoxargs.train.data import indexed, text
from neoxargs.train.data.encode import Recipe, encode, stored_type, useful_workers
from neoxargs.train.data.meter import Meter
from neoxargs.train.data.tokenizer import BUILDERS, Tokenizer, build_tokenizer

#: Changes when the same text and recipe would give other files.
FORMAT = 1


@dataclass(frozen=True)
class Summary:
    """What a token file holds."""

    documents: int
    sequences: int
    tokens: int
    text_bytes: int
    bytes_per_token: float
    unigram_entropy: float
    """In nats per token."""
    tokenizer_type: str
    vocab_size: int
    fingerprint: str


def build(texts: Sequence[str], recipe: Recipe, prefix: Path, workers: int | None = None) -> Summary:
    """Tokenise texts into `<prefix>.bin`, `.idx` and `.json`; the result does not depend on `workers`.

    Raises Problems: text that is missing, empty or not readable, a tokenizer that cannot be built.
    """
    tokenizer, files = _required(recipe, texts)
    total = sum(file.stat().st_size for file in files)
    writer = indexed.Writer(prefix, stored_type(tokenizer.vocab_size))
    counts, text_bytes = np.zeros(tokenizer.vocab_size, dtype=np.int64), 0
    try:
        with Meter(total, f"tokenising {total / 1e6:.1f} MB") as meter:
            for chunk in encode(text.documents(files), recipe, useful_workers(total, workers)):
                writer.add(chunk.ids, chunk.lengths, chunk.last)
                counts += np.bincount(chunk.ids, minlength=tokenizer.vocab_size)
                text_bytes += chunk.text_bytes
                meter.advance(chunk.size)
        if not writer.documents:
            raise Problems(
                Problem(f"{', '.join(texts)}: no text to tokenise: every document is empty", id="text-empty")
            )
        summary = _summary(writer, counts, text_bytes, recipe, fingerprint(files, recipe))
        _sidecar(prefix).unlink(missing_ok=True)
        writer.finish()
    finally:
        writer.discard()
    _write(_sidecar(prefix), asdict(summary))
    return summary


def _required(recipe: Recipe, texts: Sequence[str]) -> tuple[Tokenizer, list[Path]]:
    """The tokenizer and the files, or everything that is wrong with either."""
    problems: list[Problem] = []
    tokenizer, files = None, []
    try:
        tokenizer = build_tokenizer(recipe)
    except Problems as found:
        problems += found.problems
    try:
        files = text.find(texts)
    except Problems as found:
        problems += found.problems
    if tokenizer is None or problems:
        raise Problems(problems)
    return tokenizer, files


def _summary(
    writer: indexed.Writer, counts: NDArray[np.int64], text_bytes: int, recipe: Recipe, fingerprint: str
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
    )


def unigram_entropy(counts: NDArray[np.int64]) -> float:
    """Of the tokens' frequencies, in nats."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def if_missing(texts: Sequence[str], recipe: Recipe, prefix: Path, workers: int | None = None) -> Summary:
    """As `build`, unless the token file is there already."""
    return made_before(texts, recipe, prefix) or build(texts, recipe, prefix, workers)


def made_before(texts: Sequence[str], recipe: Recipe, prefix: Path) -> Summary | None:
    """What is in the token file if it is there and was made from the same files in the same way."""
    found = summary_of(prefix)
    return found if found and found.fingerprint == fingerprint(text.find(texts), recipe) else None


def summary_of(prefix: str | Path) -> Summary | None:
    """What stands beside a token file; None where it is missing, or was not written by us."""
    prefix = Path(prefix)
    try:
        values = json.loads(_sidecar(prefix).read_text())
        return Summary(**values) if indexed.exists(prefix) else None
    except (OSError, ValueError, TypeError):
        return None


def fingerprint(files: Sequence[Path], recipe: Recipe) -> str:
    """Changes with the names, sizes and times of the files, and with everything the recipe says."""
    made_from = [_identity(file) for file in files]
    tokenizer = [_identity(Path(file)) for file in (recipe.vocab_file, recipe.merge_file) if file]
    whole = json.dumps([FORMAT, made_from, tokenizer, asdict(recipe)])
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def _identity(file: Path) -> tuple[str, int, int]:
    if not file.exists():  # a tokenizer's name, not a path
        return str(file), 0, 0
    status = file.stat()
    return str(file.resolve()), status.st_size, status.st_mtime_ns


def _sidecar(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".json")


def _write(path: Path, values: dict[str, Any]) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(values, indent=1) + "\n")
    os.replace(part, path)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deepy data",
        description="Tokenise text into a token file (.bin and .idx) that `data_path` can name.",
        epilog="A document is one line of a .jsonl, .jsonl.gz or .jsonl.zst file, or all of any other file.",
    )
    add = parser.add_argument
    add("texts", nargs="*", metavar="TEXT", help=f"tokenise a file, a folder, a pattern, or {text.STDLIB}")
    add("--text-path", nargs="+", default=[], metavar="TEXT", help="same as TEXT, under its name in a configuration")
    add("--output-prefix", required=True, metavar="PREFIX", help="write PREFIX.bin, PREFIX.idx and PREFIX.json")
    add("--tokenizer-type", default="GPT2BPETokenizer", choices=list(BUILDERS), metavar="NAME",
        help=f"use one of {', '.join(BUILDERS)} (default: %(default)s)")  # fmt: skip
    add("--vocab-file", metavar="FILE", help="read the tokenizer's vocabulary: vocab.json, tokenizer.json or .model")
    add("--merge-file", metavar="FILE", help="read merges.txt, for GPT2BPETokenizer")
    add("--append-eod", action=argparse.BooleanOptionalAction, default=True,
        help="append the end-of-document token to each document (default: on)")  # fmt: skip
    add("--json-key", default="text", metavar="KEY", help="read a JSON line's text from KEY (default: %(default)s)")
    add("--workers", type=int, metavar="N", help="use N processes (default: one per core, fewer for little text)")
    add("--if-missing", action="store_true", help="keep the files of PREFIX if text and tokenizer are unchanged")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 after printing what is wrong."""
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a terminated build tidies up
    recipe = Recipe(args.tokenizer_type, args.vocab_file, args.merge_file, args.append_eod, args.json_key)
    texts, prefix = [*args.texts, *args.text_path], Path(args.output_prefix)
    started = time.perf_counter()
    try:
        found = made_before(texts, recipe, prefix) if args.if_missing else None
        summary = found or build(texts, recipe, prefix, args.workers)
    except Problems as problems:
        print(_as_flags(str(problems)), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if found:
        print(f"{prefix}: up to date, {found.tokens:,} tokens from the same text and tokenizer")
    else:
        print(report(summary, args.output_prefix, time.perf_counter() - started))
    return 0


def _as_flags(told: str) -> str:
    """What is a parameter in a file is a flag on this command line."""
    names = r"(?<![\w/.-])(tokenizer_type(?::(?= \w))?|vocab_file|merge_file)(?![\w/.])"
    return re.sub(names, lambda found: f"--{found[1].rstrip(':').replace('_', '-')}", told)


def report(summary: Summary, prefix: str, seconds: float) -> str:
    """What was made, for a person."""
    return "\n".join(
        (
            f"documents  {summary.documents:,} in {summary.sequences:,} sequences",
            f"tokens     {summary.tokens:,}, {summary.bytes_per_token:.2f} bytes per token",
            f"tokenizer  {summary.tokenizer_type}, vocabulary of {summary.vocab_size:,} tokens",
            f"entropy    {summary.unigram_entropy:.3f} nats per token (unigram)",
            f"time       {seconds:.1f} s, {summary.text_bytes / 1e6 / seconds:.1f} MB/s",
            f"to use it  data_path: {prefix}",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
