"""Masks and biases that the layers of a model share."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from neoxargs.train.model import attention
from neoxargs.train.model.bias import alibi, local_slopes
from neoxargs.train.model.documents import same_document
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops import flex, sparsity
from neoxargs.train.ops.sparsity import Pattern, layout
from neoxargs.train.ops.tables import Tables
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process.mesh import Axis
from tests.support.layouts import RPE
from tests.support.small_gpt import SMALL, VOCABULARY, batch, small

CPU, SEQ = torch.device("cpu"), SMALL["seq_length"]
RANDOM_BLOCKS = {"block": 2, "different_layout_per_head": True, "num_random_blocks": 1}


def model(**changes: Any) -> GPT:
    return GPT(small(**changes), VOCABULARY, Weights(), Shared()).eval()


def test_masks_are_built_once_however_many_layers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Pattern] = []
    monkeypatch.setattr(sparsity, "layout", lambda pattern: drawn.append(pattern) or layout(pattern))
    many = {"num_layers": 12, "attention_config": ["bigbird"] * 12, "sparsity_config": RANDOM_BLOCKS}
    gpt = model(**many)
    for _ in range(2):
        gpt(batch(1)[0])
    assert len(drawn) == len(set(drawn)) == 12

    # The same for the blocks of flex_attention.
    rules = [layer.attention.masks.rule for layer in gpt.layers]
    first, second = ([flex.block_mask(rule, SEQ, CPU, None, gpt_tables(gpt)) for rule in rules] for _ in range(2))
    assert all(one is other for one, other in zip(first, second, strict=True))
    assert len(drawn) == 24 and len({id(mask) for mask in first}) == 12


def gpt_tables(gpt: GPT) -> Tables:
    return gpt.layers[0].attention.masks.tables


@pytest.mark.parametrize("recomputed", [0, 1])
def test_layers_share_the_mask_of_a_batch_of_documents(recomputed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Tensor] = []
    monkeypatch.setattr(attention, "same_document", lambda starts: built.append(starts) or same_document(starts))
    gpt = model(reset_attention_mask=True, pos_emb="alibi").train()
    gpt.checkpoint_layers = recomputed
    for seed in (1, 2):
        gpt(*batch(2, seed)).backward()
    assert len(built) == 2


@pytest.mark.parametrize("changes", [{"pos_emb": "alibi"}, {"pos_emb": "rotary"}, {"sliding_window_width": 3}, RPE])
def test_what_layers_share_goes_with_the_model(changes: dict[str, Any]) -> None:
    gpt, other = model(**changes), model(**changes)
    for each in (gpt, other):
        each(batch(1)[0])
    kept = flat(gpt_tables(gpt)._kept.values())
    assert kept and not {id(x) for x in kept} & {id(x) for x in flat(gpt_tables(other)._kept.values())}
    alive = [weakref.ref(tensor) for tensor in kept]
    del gpt, kept, each
    gc.collect()
    assert not any(reference() is not None for reference in alive)


def flat(values: Iterable[Any]) -> list[Tensor]:
    return [leaf for leaf in tree_leaves([*values]) if torch.is_tensor(leaf)]


def test_slopes_of_a_tensor_parallel_rank() -> None:
    whole = alibi(SEQ, local_slopes(4, Axis()), CPU)
    assert torch.equal(alibi(SEQ, local_slopes(4, Axis(2, 1)), CPU), whole[2:])
