"""Hugging Face's GPT-NeoX and Llama with the same weights give the same logits and gradients as ours."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.registry.model import Norm
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.mlp import feed_forward_activation
from neoxargs.train.model.norm import norm
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Ranks, Weights
from tests.support.ranks import all_ranks, run_ranks
from tests.support.small_gpt import VOCABULARY, batch, load_shards, randomised, small

ByName = dict[str, Tensor]
SIZES = {
    "vocab_size": VOCABULARY.size, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 16, "tie_word_embeddings": False, "use_cache": False, "bos_token_id": 0,
    "eos_token_id": 0,
}  # fmt: skip
ROTARY = {"pos_emb": "rotary", "no_weight_tying": True}
#: Name -> the configuration here.
MODELS: dict[str, dict[str, Any]] = {
    "neox, in turn": {**ROTARY, "rotary_pct": 0.25, "rotary_emb_base": 500},
    "neox, side by side": {**ROTARY, "rotary_pct": 0.25, "gpt_j_residual": True},
    "llama": {
        **ROTARY, "num_kv_heads": 2, "norm": "rmsnorm", "rms_norm_epsilon": 1e-6, "activation": "swiglu",
        "intermediate_size": 3 * 44, "use_bias_in_mlp": False, "use_bias_in_attn_linear": False,
    },
}  # fmt: skip


def transformer(name: str) -> Any:
    os.environ["USE_TF"] = "0"
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    if name == "llama":
        config = transformers.LlamaConfig(**SIZES, intermediate_size=44, num_key_value_heads=2, rms_norm_eps=1e-6)
        model = transformers.LlamaForCausalLM(config)
    else:
        ours = MODELS[name]
        rope = {"rope_type": "default", "rope_theta": float(ours.get("rotary_emb_base", 10000))}
        config = transformers.GPTNeoXConfig(
            **SIZES, intermediate_size=128, rope_parameters={**rope, "partial_rotary_factor": 0.25},
            use_parallel_residual=ours.get("gpt_j_residual", False), hidden_act="gelu",
        )  # fmt: skip
        model = transformers.GPTNeoXForCausalLM(config)
    return randomised(model)


def from_neox(tensors: ByName) -> ByName:
    """Return GPT-NeoX's tensors under our names, which differ only in the outermost parts."""
    outside = {
        "gpt_neox.embed_in.weight": "embedding.word_embeddings.weight",
        "lm_head.weight": "output.weight",
        "gpt_neox.final_layer_norm.weight": "final_norm.weight",
        "gpt_neox.final_layer_norm.bias": "final_norm.bias",
    }
    return {outside.get(name, name.removeprefix("gpt_neox.")): tensor for name, tensor in tensors.items()}


def from_llama(tensors: ByName) -> ByName:
    ours = {
        "embedding.word_embeddings.weight": tensors["model.embed_tokens.weight"],
        "output.weight": tensors["lm_head.weight"],
        "final_norm.weight": tensors["model.norm.weight"],
    }
    for index in range(2):
        theirs, mine = f"model.layers.{index}", f"layers.{index}"
        query, key, value = (tensors[f"{theirs}.self_attn.{x}_proj.weight"].unflatten(0, (2, -1)) for x in "qkv")
        ours |= {
            f"{mine}.input_layernorm.weight": tensors[f"{theirs}.input_layernorm.weight"],
            f"{mine}.post_attention_layernorm.weight": tensors[f"{theirs}.post_attention_layernorm.weight"],
            f"{mine}.attention.query_key_value.weight": torch.cat((query, key, value), dim=1).flatten(0, 1),
            f"{mine}.attention.dense.weight": tensors[f"{theirs}.self_attn.o_proj.weight"],
            f"{mine}.mlp.dense_h_to_4h.weight": torch.cat([tensors[f"{theirs}.mlp.{x}_proj.weight"] for x in HALVES]),
            f"{mine}.mlp.dense_4h_to_h.weight": tensors[f"{theirs}.mlp.down_proj.weight"],
        }
    return ours


HALVES = ("up", "gate")


def ours(name: str, tensors: ByName) -> ByName:
    """Return their tensors (weights or gradients) under our names and in our shapes."""
    found = from_llama(tensors) if name == "llama" else from_neox(tensors)
    padding = (0, 0, 0, VOCABULARY.padded - VOCABULARY.size)
    return found | {key: F.pad(found[key], padding) for key in ("embedding.word_embeddings.weight", "output.weight")}


def expected(name: str) -> tuple[ByName, Tensor, ByName]:
    """Return weights under our names, and the other model's logits and gradients for them."""
    model, (tokens, labels) = transformer(name), batch(2)
    logits = model(tokens).logits
    F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    parameters = dict(model.named_parameters())
    gradients = ours(name, {key: p.grad for key, p in parameters.items()})
    return ours(name, {key: p.detach() for key, p in parameters.items()}), logits.detach(), gradients


def assert_same(model: GPT, answer: tuple[ByName, Tensor, ByName]) -> None:
    """Return the logits and this rank's slices of the gradients."""
    weights, logits, gradients = answer
    tokens, labels = batch(2)
    load_shards(model, weights)
    torch.testing.assert_close(model(tokens), logits, rtol=1e-4, atol=1e-4)
    model(tokens, labels).backward()
    found = {key: p.grad for key, p in named_weights(model).items()}
    assert found.keys() == gradients.keys()
    load_shards(model, gradients)
    for key, slice_of in named_weights(model).items():
        torch.testing.assert_close(found[key], slice_of, rtol=1e-4, atol=1e-4, msg=lambda m, n=key: f"{n}: {m}")


@pytest.mark.parametrize("name", MODELS)
def test_one_rank(name: str) -> None:
    assert_same(GPT(small(**MODELS[name]), VOCABULARY, Weights(), Shared()), expected(name))


def each_rank(answers: dict[str, tuple[ByName, Tensor, ByName]]) -> None:
    axis = all_ranks()
    for name, answer in answers.items():
        assert_same(GPT(small(**MODELS[name]), VOCABULARY, Weights(ranks=Ranks(axis)), Shared()), answer)


def test_two_tensor_parallel_ranks() -> None:
    run_ranks(each_rank, 2, {name: expected(name) for name in MODELS})


GATED = {
    "glu": lambda gate: 1 / (1 + (-gate).exp()),
    "bilinear": lambda gate: gate,
    "reglu": lambda gate: gate.clamp(min=0),
    "geglu": lambda gate: gate * (1 + (gate / 2**0.5).erf()) / 2,
    "swiglu": lambda gate: gate / (1 + (-gate).exp()),
}


@pytest.mark.parametrize("name", GATED)
def test_the_second_half_is_the_gate(name: str) -> None:
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    activation = feed_forward_activation(small(activation=name), Shared().recompute)
    torch.testing.assert_close(activation(x), x[:, :4] * GATED[name](x[:, 4:]))


def test_scalenorm_gives_vectors_one_length() -> None:
    layer = norm(8, Norm(norm="scalenorm"))
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close((3 * layer(x)).norm(dim=-1), torch.full((5,), 3.0))
    assert not layer(torch.zeros(1, 8)).any()


def test_tied_norms_feed_both_halves_alike() -> None:
    """With equal norms, tied and untied parallel residuals compute the same."""
    side = {**ROTARY, "gpt_j_residual": True}
    tied, untied = (GPT(small(**side, gpt_j_tied=choice), VOCABULARY, Weights(), Shared()) for choice in (True, False))
    tokens, _ = batch(2)
    assert torch.equal(tied(tokens), untied(tokens))
    assert len(list(untied.parameters())) == len(list(tied.parameters())) + 2 * 2
