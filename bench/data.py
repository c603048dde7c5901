"""Compare the speed of `deepy data` with that of Hugging Face's `tokenizers` library alone.

    python bench/data.py [--megabytes 60] [--rounds 3] [--tokenizers bpe llama3 wordpiece unigram] [--workers N]
                         [--chat]

The text is the source of Python's standard library as JSON lines, repeated in another order until it is large enough;
the tokenizers are trained on it. `deepy data` is the complete command, from its start to the finished token file, with
its progress bar on a terminal. The library encodes texts that are in memory already, in batches, with its own threads,
and the ids are not even read. Both use all cores and take turns; figures are medians.

With --chat, the text is in conversations of TURNS turns, and `deepy data --chat` renders them with a chat template and
writes labels too; the library encodes the rendered conversations.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cpu_runs import ROOT
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from neoxargs.data import text_files

END = "<|endoftext|>"
VOCABULARY = 32_000
#: Bytes that tokenizers are trained on, and the largest document.
TRAINING, DOCUMENT = 4_000_000, 8_000
#: Llama 3's pattern of words.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
#: Documents that the library encodes at once.
BATCH = 2048
#: Turns of a conversation.
TURNS = 8


def main() -> None:
    options = _options()
    print(f"{'tokenizer':12}{'tokens':>14}{'deepy data':>14}{'library alone':>15}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as folder:
        documents = _documents(int(options.megabytes * 1e6))
        source = Path(folder) / "text.jsonl"
        rows = [{"messages": _turns(document)} if options.chat else {"text": document} for document in documents]
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        if options.chat:
            documents = [_rendered(row["messages"]) for row in rows]
        for name in options.tokenizers:
            file = Path(folder) / f"{name}.json"
            TOKENIZERS[name](documents).save(str(file))
            _compare(name, source, file, documents, options)


def _compare(name: str, source: Path, file: Path, documents: list[str], options: argparse.Namespace) -> None:
    ours, alone, ratios = [], [], []
    for _ in range(options.rounds):
        tokens, seconds = with_deepy(source, file, options)
        ours.append(tokens / seconds)
        # deepy's tokens include the one that ends each document.
        alone.append((tokens - len(documents)) / with_the_library(file, documents))
        ratios.append(ours[-1] / alone[-1])
    speed, limit = statistics.median(ours), statistics.median(alone)
    print(f"{name:12}{tokens:14,}{speed:14,.0f}{limit:15,.0f}{statistics.median(ratios):8.2f}", flush=True)


def with_deepy(source: Path, tokenizer: Path, options: argparse.Namespace) -> tuple[int, float]:
    """Run `deepy data` with a terminal as stderr; return the number of tokens and the seconds it took."""
    prefix = source.with_name("tokens")
    words = [sys.executable, "deepy.py", "data", str(source), "--output-prefix", str(prefix),
             "--tokenizer-type", "HFTokenizer", "--vocab-file", str(tokenizer)]  # fmt: skip
    words += ["--workers", str(options.workers)] if options.workers else []
    words += ["--chat", "--chat-template", "chatml"] if options.chat else []
    screen, terminal = pty.openpty()
    # Without a reader, the terminal's buffer would fill up and block the command.
    threading.Thread(target=_discard, args=(screen,), daemon=True).start()
    began = time.perf_counter()
    subprocess.run(words, cwd=ROOT, stderr=terminal, stdout=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - began
    os.close(terminal)
    return json.loads(prefix.with_name("tokens.json").read_text())["tokens"], seconds


def _discard(screen: int) -> None:
    while True:
        try:
            os.read(screen, 65536)
        except OSError:  # the terminal is closed
            os.close(screen)
            return


def with_the_library(tokenizer: Path, documents: list[str]) -> float:
    """Return the seconds that the library takes to encode all documents."""
    inner = Tokenizer.from_file(str(tokenizer))
    began = time.perf_counter()
    for first in range(0, len(documents), BATCH):
        inner.encode_batch_fast(documents[first : first + BATCH])
    return time.perf_counter() - began


# -- text ------------------------------------------------------------------------------------------------------------


def _documents(size: int) -> list[str]:
    """Return documents of about `size` bytes in total."""
    once = [document for file in text_files.find([text_files.STDLIB]) for document in _parts(file)]
    order = random.Random(0)
    documents: list[str] = []
    total = 0
    while total < size:
        order.shuffle(once)
        for document in once:
            documents.append(document)
            total += len(document)
            if total >= size:
                break
    return documents


def _parts(file: Path) -> Iterator[str]:
    """Yield the text of a file in parts of whole lines."""
    part, size = [], 0
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        part.append(line)
        size += len(line)
        if size >= DOCUMENT:
            yield "".join(part)
            part, size = [], 0
    if part:
        yield "".join(part)


def _turns(document: str) -> list[dict[str, str]]:
    """Return a conversation with the text of a document."""
    size = len(document) // TURNS + 1
    parts = [document[start : start + size] for start in range(0, len(document), size)]
    return [{"role": ("user", "assistant")[i % 2], "content": part} for i, part in enumerate(parts)]


def _rendered(messages: list[dict[str, str]]) -> str:
    """Return what the template chatml writes."""
    return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)


# -- tokenizers ------------------------------------------------------------------------------------------------------


def _trained(inner: Any, trainer: Any, documents: list[str]) -> Tokenizer:
    # The first documents, with about TRAINING bytes.
    sample = documents[: max(1, TRAINING * len(documents) // sum(map(len, documents)))]
    inner.train_from_iterator(sample, trainer)
    return inner


def _bpe(documents: list[str], *words: Any) -> Tokenizer:
    """Byte pair encoding as in GPT-2 and GPT-NeoX-20B; words: splits before it."""
    inner = Tokenizer(models.BPE())
    parts = [*words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not words)]
    inner.pre_tokenizer = pre_tokenizers.Sequence(parts)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    return _trained(inner, trainer, documents)


def _llama3(documents: list[str]) -> Tokenizer:
    """Byte pair encoding with Llama 3's pattern of words."""
    return _bpe(documents, pre_tokenizers.Split(Regex(WORDS), "isolated"))


def _wordpiece(documents: list[str]) -> Tokenizer:
    """BERT's tokenizer."""
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    return _trained(inner, trainer, documents)


def _unigram(documents: list[str]) -> Tokenizer:
    """SentencePiece's unigram model, as in T5."""
    inner = Tokenizer(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=8000, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    return _trained(inner, trainer, documents)


TOKENIZERS: dict[str, Callable[[list[str]], Tokenizer]] = {
    "bpe": _bpe,
    "llama3": _llama3,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=60, help="size of the text (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default: %(default)s)")
    parser.add_argument("--tokenizers", nargs="+", choices=TOKENIZERS, default=list(TOKENIZERS))
    parser.add_argument("--workers", type=int, help="processes of `deepy data` (default: its own choice)")
    parser.add_argument("--chat", action="store_true", help="measure conversations instead of text")
    return parser.parse_args()


if __name__ == "__main__":
    main()
