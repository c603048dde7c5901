"""Soft prompt tuning against transformers' GPT-NeoX with concatenated embeddings, and on every layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.engine.frozen import freeze_all_but
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.model.soft_prompt.prompt import NAME, is_prompt, make_room
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process import setup
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY, batch, build, load_shards, randomised, small
from tests.support.trials import Trial, train

COUNT = 5
PROMPT: dict[str, Any] = {"soft_prompt_tuning.enabled": True, "soft_prompt_tuning.num_tokens": COUNT}
MODEL: dict[str, Any] = {"pos_emb": "rotary", "gpt_j_residual": True, "no_weight_tying": True, **PROMPT}


def weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    gpt = randomised(GPT(small(**MODEL), VOCABULARY, Weights(), Shared()))
    return {name: value.detach().clone() for name, value in gpt.named_parameters()}


def reference(weights: dict[str, Tensor], tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the text's logits, the loss, and the prompt's gradient of transformers' model."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            vocab_size=VOCABULARY.padded, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=128, max_position_embeddings=16, use_parallel_residual=True, attention_bias=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        )
    )  # fmt: skip
    names = {"embedding.word_embeddings.weight": "gpt_neox.embed_in.weight", "output.weight": "lm_head.weight"}
    state = {
        names.get(name, "gpt_neox." + name.replace("final_norm", "final_layer_norm")): value
        for name, value in weights.items()
        if name != NAME
    }
    missing, surplus = theirs.load_state_dict(state, strict=False)
    assert not surplus and not [name for name in missing if "inv_freq" not in name]
    prompt = weights[NAME].clone().requires_grad_()
    kept = tokens.shape[1] - COUNT
    text = theirs.gpt_neox.embed_in(tokens[:, :kept])
    hidden = torch.cat((prompt.expand(len(tokens), -1, -1), text), dim=1)
    logits = theirs.eval()(inputs_embeds=hidden).logits[:, COUNT:, : VOCABULARY.size]
    loss = F.cross_entropy(logits.flatten(0, 1), labels[:, :kept].flatten())
    loss.backward()
    assert prompt.grad is not None
    return logits.detach(), loss.detach(), prompt.grad


def test_it_is_transformers_with_concatenated_embeddings() -> None:
    full, (tokens, labels) = weights(), batch(3)
    logits, loss, gradient = reference(full, tokens, labels)
    gpt = GPT(small(**MODEL), VOCABULARY, Weights(), Shared())
    gpt.load_state_dict(full)
    freeze_all_but(is_prompt, gpt)
    shifted = make_room(MicroBatch(tokens, labels), COUNT)
    ours = gpt(**vars(shifted))
    ours.backward()
    torch.testing.assert_close(gpt(shifted.tokens)[:, COUNT:], logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours, loss, rtol=1e-5, atol=1e-5)
    trained = {name: weight.grad for name, weight in gpt.named_parameters() if weight.grad is not None}
    assert list(trained) == [NAME]
    torch.testing.assert_close(trained[NAME], gradient, rtol=1e-4, atol=1e-6)


def test_room_for_the_prompt() -> None:
    moved = make_room(MicroBatch(torch.tensor([[7, 8, 9]]), torch.tensor([[8, 9, 6]])), 2)
    assert moved.tokens.tolist() == [[0, 0, 7]]
    assert moved.labels.tolist() == [[IGNORED, IGNORED, 8]]


RECOMPUTED = {"checkpoint_activations": True}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2": {"model_parallel_size": 2},
    "tp2 sequence": {"model_parallel_size": 2, "sequence_parallel": True},
}


def gradient_on_this_rank(full: dict[str, Tensor], changes: dict[str, Any]) -> tuple[Tensor, Tensor]:
    setup.start("gloo", seed=1)
    config = small(**MODEL | changes)
    model = build(config)
    load_shards(model, full)
    freeze_all_but(is_prompt, model)
    loss = model(**vars(make_room(MicroBatch(*batch(3)), COUNT)))
    loss.backward()
    gradient = named_weights(model)[NAME].grad
    assert gradient is not None
    return loss.detach(), gradient


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensor_parallel_ranks_have_the_same_gradient(name: str) -> None:
    full = weights()
    _, loss, gradient = reference(full, *batch(3))
    for ours, of_rank in run_ranks(gradient_on_this_rank, 2, full, LAYOUTS[name]):
        torch.testing.assert_close(ours, loss, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(of_rank, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_every_engine_trains_it() -> None:
    """Also a stage that trains nothing, with tied weights whose gradients DeepSpeed would otherwise sum."""
    bf16, zero1, zero2 = {"bf16": {"enabled": True}}, *({"zero_optimization": {"stage": stage}} for stage in (1, 2))
    pipeline = {**PROMPT, "pipe_parallel_size": 2}
    trials = {
        "replicas": Trial(PROMPT), "pipeline": Trial(pipeline), "recomputed": Trial(pipeline | RECOMPUTED),
        "ZeRO-1": Trial(pipeline | {"zero_optimization.stage": 1}, zero1),
        "ZeRO-2": Trial(PROMPT | {"zero_optimization.stage": 2}, zero2),
        "bf16": Trial(pipeline | {"precision": "bfloat16"}, bf16),
    }  # fmt: skip
    [found, _] = run_ranks(train, 2, trials, 3)
    expected = found["replicas"]
    assert expected.train[2] < expected.train[0]
    for name, outcome in found.items():
        tolerance = 1e-3 if name == "bf16" else 1e-5
        assert outcome.train == pytest.approx(expected.train, rel=tolerance), name
        assert outcome.norms == pytest.approx(expected.norms, rel=20 * tolerance), name
