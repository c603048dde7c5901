"""transformers' Mixtral with the same weights gives the same logits and gradients, however the experts are divided."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.losses.added_losses import AddedLosses
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Ranks, TensorShard, Weights, join_slices, rank_slice
from neoxargs.train.process.mesh import ALONE, Axis
from tests.support.ranks import all_ranks, run_ranks
from tests.support.small_gpt import VOCABULARY, batch, load_shards, own_shard, randomised, small

EXPERTS, WIDTH = 4, 44
MIXTRAL: dict[str, Any] = {
    "pos_emb": "rotary", "no_weight_tying": True, "num_kv_heads": 2, "norm": "rmsnorm", "rms_norm_epsilon": 1e-6,
    "activation": "swiglu", "intermediate_size": 3 * WIDTH, "use_bias_in_mlp": False, "use_bias_in_attn_linear": False,
    "moe_num_experts": EXPERTS, "moe_top_k": 2, "moe_router_type": "topk", "moe_expert_interval": 1,
    "moe_normalize_expert_weights": True,
}  # fmt: skip
ByName = dict[str, Tensor]
Answer = tuple[ByName, Tensor, ByName]


def mixtral() -> Any:
    os.environ["USE_TF"] = "0"
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=VOCABULARY.size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=WIDTH, num_local_experts=EXPERTS, num_experts_per_tok=2, max_position_embeddings=16,
        rms_norm_eps=1e-6, use_cache=False, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    torch.manual_seed(3)
    return randomised(transformers.MixtralForCausalLM(config))


def ours(tensors: ByName) -> ByName:
    """Return their tensors (weights or gradients) under our names and in our shapes."""
    padding = (0, 0, 0, VOCABULARY.padded - VOCABULARY.size)
    found = {
        "embedding.word_embeddings.weight": F.pad(tensors["model.embed_tokens.weight"], padding),
        "output.weight": F.pad(tensors["lm_head.weight"], padding),
        "final_norm.weight": tensors["model.norm.weight"],
    }
    for index in range(2):
        theirs, mine = f"model.layers.{index}", f"layers.{index}"
        heads = [tensors[f"{theirs}.self_attn.{x}_proj.weight"].unflatten(0, (2, -1)) for x in "qkv"]
        gate, up = tensors[f"{theirs}.mlp.experts.gate_up_proj"].chunk(2, dim=1)
        found |= {
            f"{mine}.input_layernorm.weight": tensors[f"{theirs}.input_layernorm.weight"],
            f"{mine}.post_attention_layernorm.weight": tensors[f"{theirs}.post_attention_layernorm.weight"],
            f"{mine}.attention.query_key_value.weight": torch.cat(heads, dim=1).flatten(0, 1),
            f"{mine}.attention.dense.weight": tensors[f"{theirs}.self_attn.o_proj.weight"],
            f"{mine}.mlp.router.weight": tensors[f"{theirs}.mlp.gate.weight"],
            f"{mine}.mlp.experts.dense_h_to_4h.weight": torch.cat((up, gate), dim=1),
            f"{mine}.mlp.experts.dense_4h_to_h.weight": tensors[f"{theirs}.mlp.experts.down_proj"],
        }
    return found


@pytest.fixture(scope="module")
def answer() -> Answer:
    """ByName under our names, and the other model's logits and gradients for them."""
    model, (tokens, labels) = mixtral(), batch(2)
    logits = model(tokens).logits
    F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    parameters = dict(model.named_parameters())
    gradients = ours({name: p.grad for name, p in parameters.items()})
    return ours({name: p.detach() for name, p in parameters.items()}), logits.detach(), gradients


def assert_same(model: GPT, answer: Answer, replicas: Axis = ALONE) -> None:
    """replicas: ranks that divide the batch; the gradients are then averaged over them."""
    weights, logits, gradients = answer
    tokens, labels, logits = (x.chunk(replicas.size)[replicas.rank] for x in (*batch(2), logits))
    parameters = named_weights(model)
    assert parameters.keys() == weights.keys()
    load_shards(model, weights)
    torch.testing.assert_close(model(tokens), logits, rtol=1e-4, atol=1e-4)
    model(tokens, labels).backward()
    for name, weight in parameters.items():
        weight.grad /= replicas.size
        if replicas.size > 1 and not hasattr(weight, "expert_shard"):
            torch.distributed.all_reduce(weight.grad)
        expected = own_shard(gradients[name], weight)
        torch.testing.assert_close(weight.grad, expected, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_one_rank(answer: Answer) -> None:
    assert_same(GPT(small(**MIXTRAL), VOCABULARY, Weights(), Shared(losses=AddedLosses())), answer)


def each_rank(answer: Answer) -> None:
    axis = all_ranks()
    for by_width in (False, True):
        for sequence in (False, True):
            config = small(**MIXTRAL, enable_expert_tensor_parallelism=by_width)
            assert_same(
                GPT(config, VOCABULARY, Weights(ranks=Ranks(axis, sequence_parallel=sequence)), Shared()), answer
            )
    assert_same(GPT(small(**MIXTRAL), VOCABULARY, Weights(ranks=Ranks(expert=axis)), Shared()), answer, replicas=axis)


def test_two_tensor_or_expert_parallel_ranks(answer: Answer) -> None:
    run_ranks(each_rank, 2, answer)


def test_slices_of_experts_join_to_the_whole() -> None:
    """The slices of a checkpoint: whole experts in rank order, or each rank's part of value and gate."""
    full = torch.arange(4 * 8 * 3).view(4, 8, 3)
    for dimension, parts in ((0, 1), (1, 2)):
        shards = [TensorShard(dimension, parts, rank, 2) for rank in range(2)]
        assert torch.equal(join_slices([rank_slice(full, each) for each in shards], shards[0]), full)
