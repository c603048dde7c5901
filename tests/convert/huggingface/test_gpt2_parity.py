"""Hugging Face's GPT-2 with the same weights gives the same logits and gradients, on one rank and on several."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.micro_batch import MicroBatch, to_pipeline
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Ranks, Weights
from tests.support.ranks import all_ranks, run_ranks
from tests.support.small_gpt import (
    VOCABULARY,
    batch,
    build,
    join_shards,
    load_shards,
    randomised,
    small,
)

ByName = dict[str, Tensor]
NAMES = {
    "ln_1": "input_layernorm",
    "attn.c_attn": "attention.query_key_value",
    "attn.c_proj": "attention.dense",
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": "mlp.dense_h_to_4h",
    "mlp.c_proj": "mlp.dense_4h_to_h",
}


def gpt2(tied: bool = True):
    os.environ["USE_TF"] = "0"
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY.size, n_positions=16, n_embd=32, n_layer=2, n_head=4, activation_function="gelu",
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, tie_word_embeddings=tied, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    return randomised(model)


def from_gpt2(tensors: ByName) -> ByName:
    """Return GPT-2's tensors (weights or gradients) under our names and in our shapes."""
    ours = {
        "embedding.word_embeddings.weight": _padded(tensors["transformer.wte.weight"]),
        "positions.table": tensors["transformer.wpe.weight"],
        "final_norm.weight": tensors["transformer.ln_f.weight"],
        "final_norm.bias": tensors["transformer.ln_f.bias"],
    }
    if "lm_head.weight" in tensors:
        ours["output.weight"] = _padded(tensors["lm_head.weight"])
    for layer in range(2):
        for theirs, mine in NAMES.items():
            for kind in ("weight", "bias"):
                tensor = tensors[f"transformer.h.{layer}.{theirs}.{kind}"].t()  # GPT-2 stores (inputs, outputs)
                ours[f"layers.{layer}.{mine}.{kind}"] = _by_head(tensor) if "c_attn" in theirs else tensor
    return ours


def _padded(table: Tensor) -> Tensor:
    return F.pad(table, (0, 0, 0, VOCABULARY.padded - VOCABULARY.size))


def _by_head(rows: Tensor) -> Tensor:
    """Reorder rows from all queries, all keys, all values to query, key and value of each head."""
    return rows.unflatten(0, (3, 4, 8)).transpose(0, 1).flatten(0, 2)


def expected(tied: bool = True) -> tuple[ByName, Tensor, ByName]:
    """Return weights under our names, and GPT-2's logits and gradients for them."""
    model, (tokens, labels) = gpt2(tied), batch(2)
    logits = model(tokens).logits
    F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    parameters = dict(model.named_parameters())
    gradients = from_gpt2({name: p.grad for name, p in parameters.items()})
    return from_gpt2({name: p.detach() for name, p in parameters.items()}), logits.detach(), gradients


def assert_same(logits: Tensor, gradients: ByName, tied: bool = True) -> None:
    _, their_logits, their_gradients = expected(tied)
    torch.testing.assert_close(logits, their_logits, rtol=1e-4, atol=1e-4)
    assert gradients.keys() == their_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, their_gradients[name], rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def plain(model: GPT) -> tuple[Tensor, ByName]:
    tokens, labels = batch(2)
    model(tokens, labels).backward()
    return model(tokens), {name: p.grad for name, p in named_weights(model).items()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("checkpoint_layers", [0, 1])
def test_one_rank(tied: bool, checkpoint_layers: int) -> None:
    model = GPT(small(no_weight_tying=not tied), VOCABULARY, Weights(), Shared())
    model.checkpoint_layers = checkpoint_layers
    load_shards(model, expected(tied)[0])
    assert_same(*plain(model), tied)


def tensor_parallel(weights: ByName) -> tuple[Tensor, ByName]:
    model = GPT(small(), VOCABULARY, Weights(ranks=Ranks(all_ranks())), Shared())
    load_shards(model, weights)
    return plain(model)


def test_two_tensor_parallel_ranks() -> None:
    weights, _, _ = expected()
    results = run_ranks(tensor_parallel, 2, weights)
    for logits, _ in results:
        assert_same(logits, join_shards([gradients for _, gradients in results], weights))


def pipeline(weights: ByName) -> tuple[Tensor | None, ByName]:
    """One step of gradient descent with learning rate 1: the change of a weight is its negative gradient."""
    import deepspeed

    model = build(small(pipe_parallel_size=2))
    load_shards(model, weights)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        config={"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0, "steps_per_print": 10**9},
    )
    _, readout = engine.eval_batch(iter([to_pipeline(MicroBatch(*batch(2)))]), return_logits=True)
    logits = model.loss_fn.loss.logits(readout) if engine.is_last_stage() else None
    engine.train_batch(iter([to_pipeline(MicroBatch(*batch(2)))]))
    return logits, {name: weights[name] - p.detach() for name, p in named_weights(model).items()}


def test_two_pipeline_stages() -> None:
    weights, _, _ = expected()
    results = run_ranks(pipeline, 2, weights)
    logits = next(logits for logits, _ in results if logits is not None)
    assert_same(logits, join_shards([gradients for _, gradients in results], weights))
