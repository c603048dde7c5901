"""A text generator in one process, and the tokens that it must produce, computed without a cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from neoxargs.data.tokenizer import Ids
from neoxargs.registry.generation import Generation
from neoxargs.train.generation.generator import Generator, PlainModel
from neoxargs.train.generation.logprobs import ScoringRow
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.rotary import each_length, length_of_same_angles
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process.mesh import Mesh
from tests.support.small_gpt import VOCABULARY, small

SEQ = 16
CPU = torch.device("cpu")
EOD = 60
#: With tied weights, an untrained model only repeats the last token.
UNTIED = {"no_weight_tying": True, "init_method_std": 0.3}


class Letters:
    """A tokenizer with one token per letter: `a` is 0, `b` is 1, ..."""

    vocab_size, eod, start, ends = VOCABULARY.size, EOD, EOD, frozenset[int]()

    def tokenize(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def tokenize_batch(self, texts: Sequence[str]) -> list[Ids]:
        raise NotImplementedError

    def detokenize(self, ids: Iterable[int]) -> str:
        return "".join(chr(ord("a") + i) for i in ids)


def one_process(tokenizer: Letters | None = None, model: dict[str, Any] = UNTIED, **options: Any) -> Generator:
    config = small(**model)
    gpt = GPT(config, VOCABULARY, Weights(1234), Shared()).eval()
    return Generator(
        PlainModel(gpt, gpt, CPU), tokenizer or Letters(), Generation(**options), SEQ, Mesh(), 3,
        length_of_same_angles(config), each_length(config),
    )  # fmt: skip


@torch.no_grad()
def greedy_tokens(prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """Return `count` greedy tokens and their logits, each from a forward pass over the last SEQ tokens."""
    gpt, row, logits = GPT(small(**UNTIED), VOCABULARY, Weights(1234), Shared()).eval(), list(prompt), []
    for _ in range(count):
        best = gpt(torch.tensor([row[-SEQ:]]))[0, -1].max(-1)
        row.append(int(best.indices))
        logits.append(float(best.values))
    return row[len(prompt) :], logits


@torch.no_grad()
def one_by_one(gpt: GPT, rows: list[ScoringRow]) -> list[tuple[float, bool]]:
    """Return the score of each row and whether it is the likeliest, from full logits of the row alone."""
    found = []
    for ids, scored in rows:
        logits = gpt(torch.tensor([ids[:-1] or [0]]))[0].log_softmax(-1)[len(ids) - 1 - scored : len(ids) - 1]
        labels = torch.tensor(ids[len(ids) - scored :], dtype=torch.int64)
        logs = logits.gather(1, labels.unsqueeze(1)) if scored else torch.zeros(1)
        found.append((float(logs.sum()), bool((logits.argmax(-1) == labels).all())))
    return found
