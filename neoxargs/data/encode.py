"""Encode documents to token ids, in this process or in several; the result is in the order of the documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neoxargs.base.problems import Problem, Problems, shortened
from neoxargs.data.parallel import chunks, in_parallel
from neoxargs.data.text_files import Raw, decode
from neoxargs.data.tokenizer import Tokenizer, build_tokenizer, utf8


@dataclass(frozen=True)
class Recipe:
    """The options by which text becomes token ids. Together with the text files, they determine the token file.

    `build_tokenizer` reads the first three fields.
    """

    tokenizer_type: str
    vocab_file: str | None = None
    merge_file: str | None = None
    append_eod: bool = True
    json_key: str = "text"


class Encoded(NamedTuple):
    """The token ids of a chunk's pieces, concatenated."""

    ids: NDArray[np.generic]
    """In the type that the token file stores (`stored_type`)."""
    lengths: list[int]
    """Number of token ids in each piece."""
    last: list[bool]
    """Whether a document ends with this piece."""
    size: int
    """Bytes on disk, for the progress bar."""
    text_bytes: int
    """Size of the text in UTF-8, in bytes."""
    problems: list[Problem]


def encode(raws: Iterable[Raw], recipe: Recipe, workers: int) -> Iterator[Encoded]:
    """Yield the ids of each chunk, in order; raise Problems with the problems of the first chunk that has any."""
    units = chunks(raws)
    results = in_parallel(units, _encoder, (recipe,), workers) if workers > 1 else map(_encoder(recipe), units)
    for result in results:
        if result.problems:
            # Whether the first chunk with problems was the last one: then no others are left unexamined.
            raise Problems(shortened(result.problems, complete=next(results, None) is None))
        yield result


def _encoder(recipe: Recipe) -> Callable[[list[Raw]], Encoded]:
    return partial(_encode, recipe=recipe, tokenizer=build_tokenizer(recipe))


def _encode(chunk: list[Raw], recipe: Recipe, tokenizer: Tokenizer) -> Encoded:
    texts = [decode(raw, recipe.json_key) for raw in chunk]
    wrong = [(raw, text) for raw, text in zip(chunk, texts, strict=True) if isinstance(text, Problem)]
    nonempty = [(raw, text) for raw, text in zip(chunk, texts, strict=True) if isinstance(text, str) and text]
    pieces = tokenizer.tokenize_batch([text for _, text in nonempty])
    last = [raw.last for raw, _ in nonempty]
    if recipe.append_eod:
        # The type of `Ids`: concatenating types would widen the result.
        end = np.array([tokenizer.eod], dtype=np.int32)
        pieces = [np.concatenate((ids, end)) if ends else ids for ids, ends in zip(pieces, last, strict=True)]
    return Encoded(
        # np.concatenate rejects an empty list, hence the empty array.
        ids=np.concatenate([*pieces, np.empty(0, np.int32)]).astype(stored_type(tokenizer.vocab_size)),
        lengths=[len(ids) for ids in pieces],
        last=last,
        size=sum(raw.size for raw in chunk),
        # Texts of ASCII only, which are frequent, need not be encoded to be measured.
        text_bytes=sum(len(text if text.isascii() else utf8(text)) for _, text in nonempty),
        problems=_one_per_plain_file(wrong),
    )


def _one_per_plain_file(wrong: list[tuple[Raw, Problem]]) -> list[Problem]:
    """Return the problems without those of further pieces of the same file, which have the same cause."""
    first: dict[object, Problem] = {}
    for raw, problem in wrong:
        first.setdefault(raw.path if raw.line is None else (raw.path, raw.start), problem)
    return list(first.values())


def stored_type(vocab_size: int) -> type[np.uint16] | type[np.int32]:
    """Return the type in which Megatron and NeoX store ids: 2 bytes below 65,500 tokens, otherwise 4."""
    return np.uint16 if vocab_size < 65500 else np.int32
