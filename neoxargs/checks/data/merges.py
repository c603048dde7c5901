"""Whether the tokens of a file can have been made by the tokenizer of the configuration, told from the tokens alone.

Byte pair encoding ends when no two neighbours of a word can be merged. So where the ids of a file, read as tokens of
this tokenizer, are neighbours that it merges, it has not made them. Only letters of ASCII are looked at: they are of
one word in every tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from neoxargs.config.config import Config
from neoxargs.facts.vocab import ids_of_tokens, merges_of, stamp
from neoxargs.files.token_files.index import some_ids

#: Token ids that are read.
READ = 1 << 16
#: Number and share of neighbours that are merged by another tokenizer at least. Of a tokenizer's own files, none are,
#: except at the joints of a text that was tokenised in pieces.
LEAST, SHARE = 8, 0.002
#: What marks the beginning of a word, in GPT-2's and in SentencePiece's vocabularies.
SPACES = "Ġ▁"


def unmerged(config: Config, prefix: str) -> float | None:
    """Return the share of neighbours in a token file that the tokenizer merges; None if that is usual, or unknown."""
    tokenizer = config.tokenizer
    files = tokenizer.vocab_file, tokenizer.merge_file
    words, merges = _words_and_merges(tokenizer.tokenizer_type or "", *files, tuple(map(stamp, files)))
    total = wrong = 0
    for _, part in some_ids(prefix, READ) if words else ():
        for pair in _neighbours(part, words):
            total, wrong = total + 1, wrong + (pair in merges)
    return wrong / total if wrong >= max(LEAST, SHARE * total) else None


@lru_cache(maxsize=1)  # of one tokenizer, for all token files
def _words_and_merges(
    kind: str, vocab_file: str | None, merge_file: str | None, stamps: object
) -> tuple[dict[int, str], set[tuple[str, ...]]]:
    """Return id -> token of the tokens of letters, and the pairs that are merged; empty if they are not known."""
    merges = merges_of(kind, vocab_file, merge_file)
    ids = ids_of_tokens(kind, vocab_file) if merges else None
    words = {}
    for token, id_ in (ids or {}).items():
        word = token.lstrip(SPACES)
        if word.isascii() and word.isalpha():
            words[id_] = token
    return words, merges


def _neighbours(ids: Sequence[int], words: dict[int, str]) -> Iterator[tuple[str, str]]:
    """Yield each token of letters with the one behind it, if that continues its word."""
    for first, second in pairwise(ids):
        left, right = words.get(first), words.get(second)
        if left and right and right[0] not in SPACES:
            yield left, right
