"""Layers and parameters of pipeline stages, as in DeepSpeed and `train/model`."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from neoxargs.config.config import Config
from neoxargs.config.value import Source, Value
from neoxargs.facts.layout import partition_balanced
from neoxargs.facts.model import parameters
from neoxargs.plan.memory.stages import pipeline_stages

ROWS = 512
SHAPE = {
    "num_layers": 6, "hidden_size": 64, "num_attention_heads": 8, "num_kv_heads": 8, "intermediate_size": 256,
    "seq_length": 32, "max_position_embeddings": 32, "pipe_parallel_size": 1, "model_parallel_size": 1,
}  # fmt: skip


def config(**values: object) -> Config:
    changed = SHAPE | values
    size = int(str(changed["pipe_parallel_size"])) * int(str(changed["model_parallel_size"]))
    return Config({name: Value(value, Source("set")) for name, value in {"world_size": size, **changed}.items()})


def test_partitions_are_those_of_deepspeed() -> None:
    theirs = pytest.importorskip("deepspeed.runtime.utils").partition_balanced
    generator = random.Random(1)
    for _ in range(100):
        costs = [generator.choice([0, 1, 5, 7, 7, 7, 30]) for _ in range(generator.randint(1, 16))]
        parts = generator.randint(1, 6)
        assert partition_balanced(tuple(costs), parts) == [int(bound) for bound in theirs(costs, parts)], costs


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_shards_and_replicated_weights_add_up_to_the_model(tensor: int) -> None:
    configured = config(model_parallel_size=tensor, pipe_parallel_size=3, no_weight_tying=True)
    held = pipeline_stages(configured, ROWS)
    replicated = sum(stage.replicated for stage in held)
    assert sum(stage.parameters for stage in held) * tensor == parameters(configured, ROWS) + (tensor - 1) * replicated


@pytest.mark.parametrize("method", ["parameters", "type:transformer", "uniform", "type:norm"])
def test_every_layer_is_on_one_stage(method: str) -> None:
    held = pipeline_stages(config(pipe_parallel_size=3, pipe_partition_method=method), ROWS)
    assert [layer for stage in held for layer in stage.layers] == list(range(6))
    assert all(before.layers.stop == after.layers.start for before, after in pairwise(held))
    assert (held[0].first, held[-1].last) == (True, True)


def test_balanced_parameters_count_the_vocabulary() -> None:
    held = pipeline_stages(config(pipe_parallel_size=2, pipe_partition_method="parameters", num_layers=8), 8 * ROWS)
    even = pipeline_stages(config(pipe_parallel_size=2, num_layers=8), 8 * ROWS)
    assert max(stage.parameters for stage in held) <= max(stage.parameters for stage in even)


def test_a_tied_table_is_on_the_first_and_the_last_stage() -> None:
    first, last = pipeline_stages(config(pipe_parallel_size=2), ROWS)
    assert first.parts["embedding"] == last.parts["output"] == ROWS * 64
