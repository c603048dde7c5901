"""Ranks and layers are placed as in DeepSpeed."""

import re
from itertools import pairwise

import pytest

from neoxargs.config.config import Config
from neoxargs.config.value import Source, Value
from neoxargs.facts.layout import AFTER, BEFORE, Layout, layers_of_stages


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


def test_parameters_are_counted_by_deepspeed_only():
    made = config(num_layers=4, pipe_parallel_size=2, world_size=2, pipe_partition_method="parameters")
    assert layers_of_stages(made) is None


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "method", ["type:transformer|embedding", "type:norm", "type:transformer|norm", "type:Block|out"]
)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_layers_beside_the_blocks_are_counted_as_by_the_pipeline(stages, method, tied):
    """The two embeddings are one layer, and a tied embedding is also the output."""
    deal = pytest.importorskip("deepspeed.runtime.utils")
    pattern = method.removeprefix("type:").lower()
    last = "tokenembedding" if tied else "outputlayer"
    names = ["tokenembedding", "", *["transformerblock"] * 4, "finalnorm", last]
    bounds = deal.partition_balanced([int(bool(re.search(pattern, name))) for name in names], stages)
    values = {"no_weight_tying": not tied, "pipe_partition_method": method}
    ours = layers_of_stages(config(num_layers=4, pipe_parallel_size=stages, world_size=stages, **values))
    assert [list(held) for held in ours] == [[i - 2 for i in range(a, b) if 2 <= i < 6] for a, b in pairwise(bounds)]


def test_a_layer_of_bloom_fits_on_every_stage():
    """70 layers, embedding and output on 72 stages."""
    made = config(
        num_layers=70, pipe_parallel_size=72, world_size=72, no_weight_tying=False,
        pipe_partition_method="type:transformer|embedding",
    )  # fmt: skip
    assert layers_of_stages(made) == [range(0), *(range(layer, layer + 1) for layer in range(70)), range(70, 70)]


def test_class_names_are_those_of_the_model():
    parts, pipeline = (pytest.importorskip(f"neoxargs.train.{name}") for name in ("model.parts", "engine.pipeline"))
    assert all(hasattr(parts, name) or hasattr(pipeline, name) for name in (*BEFORE, *AFTER))
    table = pytest.importorskip("neoxargs.train.model.blocks.table")
    assert all(name == block.__name__ for name, block in table.BLOCKS.items())
