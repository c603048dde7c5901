"""Operations of a stage against the model's, which `facts/model.py` counts from its weights."""

from __future__ import annotations

import pytest

from neoxargs.config.config import Config
from neoxargs.facts.model import flops_per_token
from neoxargs.plan.memory.stages import pipeline_stages
from neoxargs.plan.time.operations import Operations, stage_operations
from tests.support.small_gpt import small

ROWS = 64
BATCH = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8, "world_size": 4}
FP32 = {"precision": "fp32"}


def of_stages(config: Config) -> list[Operations]:
    return [stage_operations(config, stage, ROWS) for stage in pipeline_stages(config, ROWS)]


def configuration(**changes: object) -> Config:
    return small(**{**BATCH, **FP32, **changes})


@pytest.mark.parametrize(("tensor", "pipe"), [(1, 0), (2, 0), (1, 2), (2, 2)])
def test_the_stages_together_compute_the_model_and_the_scores_once_more(tensor: int, pipe: int) -> None:
    config = configuration(model_parallel_size=tensor, pipe_parallel_size=pipe)
    tokens, shape = 2 * config.shape.seq_length, config.shape
    scores = 2 * shape.num_layers * shape.hidden_size * shape.seq_length
    expected = tokens * (flops_per_token(config, ROWS) + scores)
    assert sum(operations.total for operations in of_stages(config)) * tensor == expected


def test_recomputation_repeats_the_layers_but_for_the_last_product() -> None:
    [kept], [again] = of_stages(configuration()), of_stages(configuration(checkpoint_activations=True))
    forward = kept.linear // 3
    last = 2 * 2 * 16 * 32 * 128  # a feed-forward layer's second matrix, in each of two groups of one layer
    assert again.linear == kept.linear + forward - 2 * last
    assert again.attention * 7 == kept.attention * 9  # of 2 products in the forward pass and 5 in the backward pass
    assert again.vocabulary == kept.vocabulary


def test_dropout_after_the_last_product_needs_it() -> None:
    [kept] = of_stages(configuration())
    [again] = of_stages(configuration(checkpoint_activations=True, hidden_dropout=0.1))
    assert again.linear == kept.linear * 4 // 3


def test_stored_scores_are_not_computed_again() -> None:
    unfused = {"attention_softmax_in_fp32": True, "scaled_upper_triang_masked_softmax_fusion": False}
    [fused], [stored] = (of_stages(configuration(precision="bfloat16", **changes)) for changes in ({}, unfused))
    assert fused.attention * 6 == stored.attention * 7
