"""Mamba layers compute what transformers' Mamba does, on any number of tensor parallel ranks."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.facts.model import parameters
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.optim.build import parameter_groups
from neoxargs.train.parallel.layers import Ranks, Weights
from tests.support.ranks import all_ranks, run_ranks
from tests.support.small_gpt import VOCABULARY, batch, load_shards, own_shard, small

MAMBA: dict[str, Any] = {
    "attention_config": ["mamba", "mamba"], "mamba_inner_size": 64, "pos_emb": "none", "norm": "rmsnorm",
    "rms_norm_epsilon": 1e-5, "rms_norm_epsilon_under_root": True,
}  # fmt: skip
BIASES = {"mamba_use_bias_in_linears": True, "norm": "layernorm"}
MIXED = {"attention_config": ["mamba", "global"]}
ByName = dict[str, Tensor]


def model(**changes: Any) -> GPT:
    """Return a model whose weights are not their initial values, which would hide mistakes."""
    torch.manual_seed(5)
    built = GPT(small(**MAMBA | changes), VOCABULARY, Weights(), Shared())
    with torch.no_grad():
        for weight in built.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return built


def transformers_mamba() -> Any:
    os.environ["USE_TF"] = "0"
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(
        vocab_size=VOCABULARY.padded, hidden_size=32, num_hidden_layers=2, state_size=16, expand=2, conv_kernel=4,
        layer_norm_epsilon=1e-5, residual_in_fp32=False, use_cache=False,
    )  # fmt: skip
    return transformers.MambaForCausalLM(config)


def ours(tensors: ByName) -> ByName:
    """Return their tensors (weights or gradients) under our names."""
    renamed = {
        "backbone.embeddings.weight": "embedding.word_embeddings.weight",
        "backbone.norm_f.weight": "final_norm.weight",
    }
    return {renamed.get(name, name.removeprefix("backbone.")): tensor for name, tensor in tensors.items()}


def test_transformers_computes_the_same() -> None:
    mine, theirs = model(), transformers_mamba()
    names = ours(dict(theirs.named_parameters()))
    with torch.no_grad():
        for name, weight in mine.named_parameters():
            names[name].copy_(weight)
    tokens, labels = batch(3)
    expected = theirs(tokens).logits[..., : VOCABULARY.size]
    torch.testing.assert_close(mine(tokens), expected, atol=1e-5, rtol=1e-4)
    loss = F.cross_entropy(expected.flatten(0, 1), labels.flatten())
    loss.backward()
    mine_loss = mine(tokens, labels)
    mine_loss.backward()
    torch.testing.assert_close(mine_loss, loss)
    for name, weight in mine.named_parameters():
        torch.testing.assert_close(
            weight.grad, names[name].grad, atol=1e-5, rtol=1e-3, msg=partial("{}: {}".format, name)
        )


@pytest.mark.parametrize(
    "changes",
    [{}, BIASES, {**BIASES, "mamba_use_bias_in_x_proj": False}, {"mamba_use_bias_in_conv": False},
     {"attention_config": ["mamba", "global"]}, {"norm_placement": "both"}],
)  # fmt: skip
def test_counts_equal_those_of_the_built_model(changes: dict[str, Any]) -> None:
    built = model(**changes)
    assert parameters(small(**MAMBA | changes), VOCABULARY.padded) == sum(x.numel() for x in built.parameters())


def test_weight_decay_leaves_out_what_is_no_matrix_of_a_product() -> None:
    built = model(**BIASES)
    decayed = {id(weight) for weight in parameter_groups(built, 0.1)[0]["params"]}
    names = {name.removeprefix("layers.0.") for name, weight in built.named_parameters() if id(weight) in decayed}
    of_layer = {name for name in names if name.startswith("mixer")}
    assert of_layer == {f"mixer.{x}.weight" for x in ("in_proj", "conv1d", "x_proj", "dt_proj", "out_proj")}


def test_documents_see_only_their_own_tokens() -> None:
    mine = model(reset_attention_mask=True, eod_mask_loss=False).eval()
    tokens = batch(1)[0]
    tokens[tokens == VOCABULARY.eod] = 0
    tokens[0, 6] = VOCABULARY.eod
    whole = mine(tokens)
    assert VOCABULARY.eod is not None
    alone = model().eval()
    torch.testing.assert_close(whole[:, :7], alone(tokens[:, :7]), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(whole[:, 7:], alone(tokens[:, 7:]), atol=1e-5, rtol=1e-4)


def each_rank(changes: dict[str, Any], weights: ByName, logits: Tensor, gradients: ByName) -> None:
    for sequence in (False, True):
        mine = GPT(
            small(**MAMBA | changes),
            VOCABULARY,
            Weights(ranks=Ranks(all_ranks(), sequence_parallel=sequence)),
            Shared(),
        )
        load_shards(mine, weights)
        tokens, labels = batch(3)
        torch.testing.assert_close(mine(tokens), logits, atol=1e-5, rtol=1e-4)
        mine(tokens, labels).backward()
        for name, weight in mine.named_parameters():
            expected = own_shard(gradients[name], weight)
            torch.testing.assert_close(
                weight.grad, expected, atol=1e-5, rtol=1e-3, msg=partial("{}, {}: {}".format, sequence, name)
            )


@pytest.mark.parametrize("changes", [{}, BIASES, MIXED])
def test_tensor_parallel_ranks_compute_the_same(changes: dict[str, Any]) -> None:
    whole = model(**changes)
    tokens, labels = batch(3)
    logits = whole(tokens).detach()
    whole(tokens, labels).backward()
    weights = {name: weight.detach() for name, weight in whole.named_parameters()}
    gradients = {name: weight.grad for name, weight in whole.named_parameters()}
    run_ranks(each_rank, 2, changes, weights, logits, gradients)
