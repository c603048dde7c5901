"""Documents to token ids, in this process or in several, always in the order of the documents.

Workers are started by a fork server: a fork of a process in which torch or another library runs threads may
hang. They import neither torch nor Megatron, so starting one takes a tenth of a second.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neoxargs.problems import Problem, Problems
from neoxargs.train.data.text import MIB, Raw, decode
from neoxargs.train.data.tokenizer import Ids, Tokenizer, build_tokenizer

#: What one worker gets at a time: enough to hide the cost of handing it over, little enough to share fairly.
CHUNK_BYTES, CHUNK_DOCUMENTS = MIB, 2048
#: Below this much text for each, a worker costs more than it brings.
WORTH_A_WORKER = 4 * MIB


@dataclass(frozen=True)
class Recipe:
    """How text becomes ids: all that a worker has to know, and with the files all that the result depends on.

    The first three fields are read by `build_tokenizer`.
    """

    tokenizer_type: str
    vocab_file: str | None = None
    merge_file: str | None = None
    append_eod: bool = True
    json_key: str = "text"


class Encoded(NamedTuple):
    """A chunk's documents, one after the other."""

    ids: NDArray[np.generic]
    """All ids, in the type in which they are stored."""
    lengths: list[int]
    """Of each piece."""
    last: list[bool]
    """Does a document end with this piece?"""
    size: int
    """Bytes on disk."""
    text_bytes: int
    """Bytes of UTF-8."""
    problems: list[Problem]


@dataclass
class _Chunk:
    raws: list[Raw] = field(default_factory=list)
    size: int = 0

    def add(self, raw: Raw) -> None:
        self.raws.append(raw)
        self.size += raw.size if raw.line is None else len(raw.line)

    @property
    def full(self) -> bool:
        return self.size >= CHUNK_BYTES or len(self.raws) >= CHUNK_DOCUMENTS


def encode(raws: Iterable[Raw], recipe: Recipe, workers: int) -> Iterator[Encoded]:
    """Every chunk's ids, in order. Raises Problems with everything wrong in the first chunk that is not right."""
    chunks = _chunks(raws)
    results = _in_parallel(chunks, recipe, workers) if workers > 1 else _here(chunks, recipe)
    for result in results:
        if result.problems:
            raise Problems(result.problems)
        yield result


def useful_workers(total_bytes: int, asked: int | None) -> int:
    """As many as were asked for; otherwise one per core, but none that would have next to nothing to do."""
    return asked or max(1, min(len(os.sched_getaffinity(0)), total_bytes // WORTH_A_WORKER))


def _chunks(raws: Iterable[Raw]) -> Iterator[list[Raw]]:
    chunk = _Chunk()
    for raw in raws:
        chunk.add(raw)
        if chunk.full:
            yield chunk.raws
            chunk = _Chunk()
    if chunk.raws:
        yield chunk.raws


def _here(chunks: Iterator[list[Raw]], recipe: Recipe) -> Iterator[Encoded]:
    tokenizer = build_tokenizer(recipe)
    for chunk in chunks:
        yield _encode(chunk, recipe, tokenizer)


def _in_parallel(chunks: Iterator[list[Raw]], recipe: Recipe, workers: int) -> Iterator[Encoded]:
    """Results in order, with a bounded number of chunks under way however large the text is."""
    context = multiprocessing.get_context("forkserver")
    waiting: deque[Future[Encoded]] = deque()
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(recipe,)) as pool:
        try:
            for chunk in chunks:
                waiting.append(pool.submit(_work, chunk))
                if len(waiting) >= 3 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class _Worker:
    """What a worker process keeps between chunks."""

    recipe: Recipe
    tokenizer: Tokenizer


def _start_worker(recipe: Recipe) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _Worker.recipe, _Worker.tokenizer = recipe, build_tokenizer(recipe)


def _work(chunk: list[Raw]) -> Encoded:
    return _encode(chunk, _Worker.recipe, _Worker.tokenizer)


def _encode(chunk: list[Raw], recipe: Recipe, tokenizer: Tokenizer) -> Encoded:
    texts = [decode(raw, recipe.json_key) for raw in chunk]
    problems = [text for text in texts if isinstance(text, Problem)]
    kept = [(raw, text) for raw, text in zip(chunk, texts, strict=True) if isinstance(text, str) and text]
    pieces = tokenizer.tokenize_batch([text for _, text in kept])
    last = [raw.last for raw, _ in kept]
    if recipe.append_eod:
        end = np.array([tokenizer.eod], dtype=np.int32)
        pieces = [np.concatenate((ids, end)) if ends else ids for ids, ends in zip(pieces, last, strict=True)]
    return Encoded(
        ids=_joined(pieces, tokenizer.vocab_size),
        lengths=[len(ids) for ids in pieces],
        last=last,
        size=sum(raw.size for raw in chunk),
        text_bytes=sum(_utf8_length(text) for _, text in kept),
        problems=problems,
    )


def _joined(pieces: list[Ids], vocab_size: int) -> NDArray[np.generic]:
    return np.concatenate([*pieces, np.empty(0, np.int32)]).astype(stored_type(vocab_size))


def stored_type(vocab_size: int) -> type[np.uint16] | type[np.int32]:
    """The type Megatron and NeoX store ids in: two bytes while they fit."""
    return np.uint16 if vocab_size < 65500 else np.int32


def _utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", errors="surrogatepass"))
