"""Layers and parameters of pipeline stages, as in DeepSpeed and `train/model`."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from neoxargs.config.config import Config
from neoxargs.facts.layout import partition_balanced
from neoxargs.facts.model import parameters
from neoxargs.plan.memory.stages import pipeline_stages
from tests.support.small_gpt import small

ROWS = 512


def config(pipe: int, tensor: int = 1, **values: object) -> Config:
    sizes = {"world_size": pipe * tensor, "pipe_parallel_size": pipe, "model_parallel_size": tensor}
    return small(**{"num_layers": 6, **sizes, **values})


def test_partitions_are_those_of_deepspeed() -> None:
    theirs = pytest.importorskip("deepspeed.runtime.utils").partition_balanced
    generator = random.Random(1)
    for _ in range(100):
        costs = [generator.choice([0, 1, 5, 7, 7, 7, 30]) for _ in range(generator.randint(1, 16))]
        parts = generator.randint(1, 6)
        assert partition_balanced(tuple(costs), parts) == [int(bound) for bound in theirs(costs, parts)], costs


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_shards_and_replicated_weights_add_up_to_the_model(tensor: int) -> None:
    configured = config(3, tensor, no_weight_tying=True)
    held = pipeline_stages(configured, ROWS)
    replicated = sum(stage.replicated for stage in held)
    assert sum(stage.parameters for stage in held) * tensor == parameters(configured, ROWS) + (tensor - 1) * replicated


@pytest.mark.parametrize("method", ["parameters", "type:transformer", "uniform", "type:norm"])
def test_every_layer_is_on_one_stage(method: str) -> None:
    held = pipeline_stages(config(3, pipe_partition_method=method), ROWS)
    assert [layer for stage in held for layer in stage.layers] == list(range(6))
    assert all(before.layers.stop == after.layers.start for before, after in pairwise(held))
    assert (held[0].first, held[-1].last) == (True, True)


def test_balanced_parameters_count_the_vocabulary() -> None:
    held = pipeline_stages(config(2, pipe_partition_method="parameters", num_layers=8), 8 * ROWS)
    even = pipeline_stages(config(2, num_layers=8), 8 * ROWS)
    assert max(stage.parameters for stage in held) <= max(stage.parameters for stage in even)


def test_a_tied_table_is_on_the_first_and_the_last_stage() -> None:
    first, last = pipeline_stages(config(2), ROWS)
    assert first.parts["embedding"] == last.parts["output"] == ROWS * 32
