"""Ranks and layers are placed as in DeepSpeed."""

from itertools import pairwise

import pytest

from neoxargs.resolve.config import Config
from neoxargs.resolve.value import Source, Value
from neoxargs.sizes.layout import AFTER, BEFORE, Layout, layers_of_stages


def config(**values: object) -> Config:
    return Config({name: Value(value, Source("set")) for name, value in values.items()})


def test_ranks_are_numbered_as_deepspeed_numbers_them():
    topology = pytest.importorskip("deepspeed.runtime.pipe.topology")
    theirs = topology.PipeModelDataParallelTopology(num_pp=3, num_dp=4, num_mp=2)
    ours = Layout(tensor=2, pipe=3, data=4)
    for stage in range(3):
        for replica in range(4):
            assert list(ours.group(stage, replica)) == theirs.filter_match(pipe=stage, data=replica)


@pytest.mark.parametrize("layers", [4, 5, 7, 12, 24])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("method", ["type:transformer|mlp", "uniform", "type:TransformerBlock"])
def test_layers_are_distributed_as_in_deepspeed(layers, stages, method):
    deal = pytest.importorskip("deepspeed.runtime.utils")
    weights = [0] * len(BEFORE) + [1] * layers + [0] * len(AFTER)
    uniform = method == "uniform"
    bounds = deal.partition_uniform(len(weights), stages) if uniform else deal.partition_balanced(weights, stages)
    theirs = [[i - len(BEFORE) for i in range(a, b) if weights[i]] for a, b in pairwise(bounds)]
    ours = layers_of_stages(
        config(num_layers=layers, pipe_parallel_size=stages, world_size=stages, pipe_partition_method=method)
    )
    assert [list(held) for held in ours] == theirs


@pytest.mark.parametrize("method", ["parameters", "type:norm", "type:transformer|norm"])
def test_layers_that_only_deepspeed_can_compute_are_none(method):
    made = config(num_layers=4, pipe_parallel_size=2, world_size=2, pipe_partition_method=method)
    assert layers_of_stages(made) is None


def test_class_names_are_those_of_the_model():
    pipeline = pytest.importorskip("neoxargs.train.parallel.pipeline")
    assert all(hasattr(pipeline, name) for name in (*BEFORE, *AFTER))
    assert hasattr(pytest.importorskip("neoxargs.train.model.block"), "TransformerBlock")
