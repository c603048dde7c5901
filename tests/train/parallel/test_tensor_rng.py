"""Dropout masks: alike on tensor parallel ranks outside of their regions, different inside, repeated by recomputing."""

from __future__ import annotations

import torch
from torch import Tensor

from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Ranks, Weights
from neoxargs.train.parallel.tensor_rng import different_on_each_rank
from tests.support.ranks import all_ranks, run_ranks
from tests.support.small_gpt import VOCABULARY, batch, small


def draws() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(7)
    axis = all_ranks()
    before = torch.rand(4)
    with different_on_each_rank(axis, torch.device("cpu")):
        inside = torch.rand(4)
    return before, inside, torch.rand(4)


def test_ranks_differ_inside_only() -> None:
    (before, inside, after), (other_before, other_inside, other_after) = run_ranks(draws, 2)
    assert torch.equal(before, other_before)
    assert not torch.equal(inside, other_inside)
    assert torch.equal(after, other_after)
    assert not torch.equal(before, after)


def replicated_gradients() -> list[dict[str, Tensor]]:
    """Of the weights that every tensor parallel rank repeats; activations kept, then recomputed."""
    model = GPT(
        small(attention_dropout=0.3, hidden_dropout=0.3), VOCABULARY, Weights(ranks=Ranks(all_ranks())), Shared()
    )
    repeated = {n: p for n, p in model.named_parameters() if not getattr(p, "tensor_model_parallel", False)}
    found = []
    for model.checkpoint_layers in (0, 1):
        torch.manual_seed(7)
        model.zero_grad()
        model(*batch(2)).backward()
        found.append({name: parameter.grad.clone() for name, parameter in repeated.items()})
    return found


def test_replicated_gradients_agree_and_recomputing_repeats_the_masks() -> None:
    (kept, recomputed), (other_kept, other_recomputed) = run_ranks(replicated_gradients, 2)
    assert kept.keys() >= {"positions.table", "layers.0.input_layernorm.weight", "layers.1.mlp.dense_4h_to_h.bias"}
    for name, gradient in kept.items():
        assert torch.equal(gradient, other_kept[name]), name
        assert torch.equal(recomputed[name], other_recomputed[name]), name
        torch.testing.assert_close(recomputed[name], gradient)


def test_dropout_only_while_training() -> None:
    model = GPT(small(attention_dropout=0.5, hidden_dropout=0.5), VOCABULARY, Weights(), Shared())
    assert not torch.equal(model(*batch(2)), model(*batch(2)))
    model.eval()
    assert torch.equal(model(*batch(2)), model(*batch(2)))
