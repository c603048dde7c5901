"""Preference pairs: document i of two token files, in one sample, with the reference model's log-probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neoxargs.files.token_files.sources import Source
from neoxargs.registry.data import Data
from neoxargs.train.batches import datasets
from neoxargs.train.batches.datasets import Sampling, training_samples
from neoxargs.train.batches.loader import batches
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.process.mesh import ALONE
from tests.support.configure import configure
from tests.support.finetuning import token_file

pytestmark = pytest.mark.filterwarnings("ignore")  # of megatron-core, when it is imported
SEQ = 6
CHOSEN = [[1, 2, 3, 4], [5, 6, 7], [8, 9], [10, 11, 12]]
REJECTED = [[1, 2, 13], [5, 6, 14, 15], [8, *[16] * 9], [10, 11, 17]]
#: The last pair has a rejected answer without a trained token.
LABELS = [[IGNORED, *ids[1:]] for ids in CHOSEN], [[IGNORED, *ids[1:]] for ids in REJECTED[:3]] + [[IGNORED] * 3]


def made(folder: Path, samples: int, eod: int = 0, **more: Any) -> tuple[Any, Sampling]:
    files = {"chosen": CHOSEN, "rejected": REJECTED, "chosen_label": LABELS[0], "rejected_label": LABELS[1]}
    prefix = {name: token_file(folder / name, documents) for name, documents in files.items()}
    rejected = Source(prefix["rejected"], labels=prefix["rejected_label"])
    source = Source(prefix["chosen"], labels=prefix["chosen_label"], rejected=rejected)
    options = Data(pack_impl="unpacked", dataset_impl="pairwise", **more)
    sampling = Sampling(options, SEQ, 1, eod, vocab_size=99, rows=99, cache=folder / "index")
    return datasets.first_rank_first(None, lambda: datasets.dataset([source], "train", samples, sampling)), sampling


def test_a_sample_has_both_answers_and_a_batch_all_chosen_answers_first(tmp_path: Path) -> None:
    samples, sampling = made(tmp_path, 3)
    (table,) = sampling.references.tables.values()
    table[:] = np.arange(8).reshape(4, 2)
    batch = next(batches(samples, 0, ALONE, micro_batch=3))
    order = [[ids[0] for ids in CHOSEN].index(first) for first in batch.tokens[:3, 0].tolist()]
    assert sorted(order) == [0, 1, 2]
    rows = [CHOSEN[document] for document in order] + [REJECTED[document] for document in order]
    padded = [(ids + [0] * SEQ)[: SEQ + 1] for ids in rows]
    assert batch.tokens.tolist() == [ids[:-1] for ids in padded]
    # Every token but the first one is trained, and padding is not.
    targets = [[*ids[1 : SEQ + 1], *[IGNORED] * (SEQ + 1 - len(ids))] for ids in rows]
    assert batch.labels.tolist() == targets
    expected = [2.0 * document for document in order] + [2.0 * document + 1 for document in order]
    assert batch.reference is not None and batch.reference.tolist() == expected


def test_a_pair_with_one_long_answer_is_cut_or_left_out(tmp_path: Path) -> None:
    cut, _ = made(tmp_path, 3)
    assert len(cut.sources[0]) == 3 and cut.sources[0].left_out == (0, 1)
    whole, _ = made(tmp_path, 2, allow_chopped=False)
    assert len(whole.sources[0]) == 2 and whole.sources[0].left_out == (1, 1)
    assert torch.equal(torch.stack([whole[i]["tokens"] for i in range(2)])[:, 0, 0].sort().values, torch.tensor([1, 5]))


def test_a_token_after_an_end_token_of_a_pair_can_be_left_out(tmp_path: Path) -> None:
    """With a table of its own, because its reference log-probabilities are of fewer tokens."""
    sampled = [made(tmp_path, 3, eod=6, eod_mask_loss=masks) for masks in (False, True)]
    labels = [torch.cat([samples[i]["loss_mask"] for i in range(3)]).sum().item() for samples, _ in sampled]
    assert labels[0] - labels[1] == 2  # the 7 of [5, 6, 7], and the 14 of [5, 6, 14, 15]
    assert [*sampled[0][1].references.tables] != [*sampled[1][1].references.tables]


def test_pairs_follow_a_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for offset, name in ((100, "a"), (200, "b")):
        for answer, token in (("chosen", 1), ("rejected", 2)):
            token_file(Path(f"{name}_{answer}"), [[offset + document, token] for document in range(40)])
    config = configure(
        "{train_impl: dpo, dataset_impl: pairwise, pack_impl: unpacked, tokenizer_type: ByteLevelTokenizer, "
        "pos_train_data_paths: [a_chosen, b_chosen], neg_train_data_paths: [a_rejected, b_rejected], "
        "train_iters: 20, train_data_mixture: [{until: 10, weights: [3, 1]}, {weights: [1, 3]}]}",
        gpus=1,
    )
    samples = training_samples(config, Path("index"), rows=999)
    read = [samples[number]["tokens"][:, :2].tolist() for number in range(40)]
    assert all(one[0] == other[0] and (one[1], other[1]) == (1, 2) for one, other in read)
    of_a = [one[0] < 200 for one, _ in read]
    assert sum(of_a[:20]) == pytest.approx(15, abs=1) and sum(of_a[20:]) == pytest.approx(5, abs=1)
    assert len({one[0] for one, _ in read}) == 40  # none twice
