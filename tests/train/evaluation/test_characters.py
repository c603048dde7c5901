"""Perplexity per character during training, against the text that is evaluated."""

from __future__ import annotations

import math

import pytest
import torch

from neoxargs.data.tokenizer import ByteTokenizer
from neoxargs.train.evaluation.characters import CharacterCounter
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.process.mesh import build_mesh
from neoxargs.train.track.tracker import Evaluation
from tests.support.ranks import run_ranks
from tests.support.small_gpt import small

TEXTS = ["größer", "abc"]


def per_character(tensor: int) -> float:
    """Each replica evaluates one of the texts."""
    mesh = build_mesh(small(model_parallel_size=tensor))
    labels = torch.full((1, 10), IGNORED)
    ids = list(TEXTS[mesh.data.rank].encode())
    labels[0, : len(ids)] = torch.tensor(ids)
    counter = CharacterCounter(ByteTokenizer(257, 256), mesh, torch.device("cpu"))
    for _ in range(2):  # each evaluation counts anew
        batches = counter.counted(iter([MicroBatch(labels, labels)]))
        assert batches is not None and len(list(batches)) == 1
        found = counter.perplexity(1.5)
    return found


@pytest.mark.parametrize(("tensor", "texts"), [(1, TEXTS), (2, TEXTS[:1])], ids=["replicas", "tensor parallel"])
def test_perplexity_per_character(tensor: int, texts: list[str]) -> None:
    tokens, characters = sum(len(text.encode()) for text in texts), sum(map(len, texts))
    assert tokens > characters
    expected = math.exp(1.5 * tokens / characters)
    assert run_ranks(per_character, 2, tensor) == pytest.approx([expected] * 2)


def test_names_of_the_series() -> None:
    assert Evaluation(3, "validation", 1.0).series == {"validation/lm_loss": 1.0}
    series = Evaluation(3, "test", 1.0, 2.0).series
    assert series == {"test/lm_loss": 1.0, "test/lm_loss_char_lvl_ppl": 2.0}
