"""Ranks are numbered as in DeepSpeed, and the mesh's groups hold the ranks they should."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

from neoxargs.train.process.mesh import Axis, Mesh, Mpu, build_mesh, destroy_groups
from tests.support.ranks import run_ranks
from tests.support.small_gpt import small

LAYOUTS = {(2, 2): "tensor and pipe", (2, 0): "tensor and data", (1, 2): "pipe and data"}
WORLD = 4


def places() -> list[tuple[dict[str, int], dict[str, list[int]]]]:
    sys.modules["neoxargs.train.process.mesh"].TIMEOUT = 7  # type: ignore[attr-defined]
    return [_place(tensor, pipe) for tensor, pipe in LAYOUTS]


def _place(tensor: int, pipe: int) -> tuple[dict[str, int], dict[str, list[int]]]:
    """This rank's coordinates and its neighbours along each axis."""
    found = build_mesh(small(model_parallel_size=tensor, pipe_parallel_size=pipe))
    axes = {"model": found.tensor, "data": found.data, "pipe": found.pipe}
    neighbours = {name: torch.distributed.get_process_group_ranks(axis.group) for name, axis in axes.items()}
    waits = {axis.group._get_backend(torch.device("cpu")).options._timeout for axis in axes.values()}
    assert waits == {timedelta(minutes=7)}
    assert all(axis.size == len(neighbours[name]) for name, axis in axes.items())
    if pipe == 0:
        _assert_known_to_deepspeed(Mpu(found), neighbours)
    destroy_groups()
    return {name: axis.rank for name, axis in axes.items()}, neighbours


def _assert_known_to_deepspeed(mpu: Mpu, neighbours: dict[str, list[int]]) -> None:
    from deepspeed.utils import bwc

    group_ranks = torch.distributed.get_process_group_ranks
    rank, model, data = torch.distributed.get_rank(), neighbours["model"], neighbours["data"]
    assert bwc.bwc_tensor_model_parallel_rank(mpu) == mpu.get_model_parallel_rank() == model.index(rank)
    assert bwc.bwc_tensor_model_parallel_world_size(mpu) == mpu.get_model_parallel_world_size() == len(model)
    assert group_ranks(bwc.bwc_tensor_model_parallel_group(mpu)) == group_ranks(mpu.get_model_parallel_group()) == model
    assert mpu.get_tensor_model_parallel_src_rank() == model[0]
    assert (mpu.get_data_parallel_rank(), mpu.get_data_parallel_world_size()) == (data.index(rank), len(data))
    assert group_ranks(mpu.get_data_parallel_group()) == mpu.get_data_parallel_group_ranks() == data
    assert (bwc.bwc_pipeline_parallel_world_size(mpu), mpu.get_pipeline_model_parallel_rank()) == (1, 0)
    assert group_ranks(bwc.bwc_pipeline_parallel_group(mpu)) == [rank]


def test_ranks_are_numbered_as_in_deepspeed() -> None:
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    results = run_ranks(places, WORLD)
    for index, (tensor, pipe) in enumerate(LAYOUTS):
        topology = PipeModelDataParallelTopology(max(1, pipe), tensor, WORLD // (tensor * max(1, pipe)))
        for rank, found in enumerate(results):
            coordinates, neighbours = found[index]
            assert coordinates == topology.get_coord(rank)._asdict()
            for axis, ranks in neighbours.items():
                assert ranks == next(group for group in _groups(topology, axis) if rank in group)


def _groups(topology, axis: str) -> list[list[int]]:
    """topology.get_axis_comm_lists, which says nothing of axes of size 1."""
    return topology.get_axis_comm_lists(axis) if topology.get_dim(axis) > 1 else [[rank] for rank in range(WORLD)]


def made(sizes: dict[str, int]) -> int:
    """Return how many groups of this rank a mesh adds; all are gone after it."""
    groups = torch.distributed.distributed_c10d._world.pg_map
    before = len(groups)
    build_mesh(small(**sizes))
    added = len(groups) - before
    destroy_groups()
    assert len(groups) == before
    return added


def test_a_mesh_makes_few_groups() -> None:
    """One for each axis with several ranks, and one that the others share; each is a communicator on a GPU."""
    assert run_ranks(made, 2, {"model_parallel_size": 2}) == [2, 2]
    assert run_ranks(made, 4, {"model_parallel_size": 2, "pipe_parallel_size": 2}) == [3] * 4


def calls(world: int, sizes: dict[str, int], splits: bool) -> list[tuple[str, Any]]:
    """Return the calls that make the groups of rank 0 of a run of so many ranks, none of which communicate."""
    found: list[tuple[str, Any]] = []
    module = sys.modules["neoxargs.train.process.mesh"]
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)

    def recording(name: str) -> Any:
        inner = getattr(torch.distributed.distributed_c10d, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            found.append((name, arguments[0] if arguments else keywords.get("split_ranks")))
            if name == "split_group":
                own = next(ranks for ranks in keywords["split_ranks"] if 0 in ranks)
                return inner_new_group(own)
            return inner(*arguments, **keywords)

        return call

    inner_new_group = torch.distributed.new_group
    with pytest.MonkeyPatch.context() as patch:
        for name in ("new_group", "split_group"):
            made = recording(name)
            patch.setattr(torch.distributed.distributed_c10d, name, made)
            patch.setattr(torch.distributed, name, made)
        patch.setattr(module, "_splits", lambda: splits)
        build_mesh(small(**sizes))
    destroy_groups()
    torch.distributed.destroy_process_group()
    return found


def test_axes_of_one_rank_need_one_call() -> None:
    """Not one per rank of the run: 1,025 calls for 1,024 replicas."""
    assert [name for name, _ in calls(1024, {}, splits=False)] == ["new_group"] * 2
    assert len(calls(1024, {"model_parallel_size": 8}, splits=False)) == 128 + 8 + 1


def test_nccl_divides_the_communicator_once_per_axis() -> None:
    """Every rank passes the same groups, and is in one of them."""
    layout = {"model_parallel_size": 8, "pipe_parallel_size": 8}
    found = calls(1024, layout, splits=True)
    assert [name for name, _ in found] == ["split_group"] * 3
    for _, groups in found:
        assert sorted(rank for group in groups for rank in group) == list(range(1024))
    assert {len(group) for _, groups in found for group in groups} == {8, 16}


def expert_groups(sizes: dict[str, int]) -> list[tuple[list[int], int]]:
    """Return the ranks of this rank's group, and its place in it, of those with other experts and with the same."""
    found = build_mesh(small(**sizes))
    members = torch.distributed.get_process_group_ranks
    places = [(members(axis.group), axis.rank) for axis in (found.expert, found.expert_data)]
    destroy_groups()
    return places


def test_consecutive_replicas_divide_experts() -> None:
    by_two = run_ranks(expert_groups, 4, {"moe_expert_parallel_size": 2})
    assert by_two == [[([0, 1], 0), ([0, 2], 0)], [([0, 1], 1), ([1, 3], 0)], [([2, 3], 0), ([0, 2], 1)],
                      [([2, 3], 1), ([1, 3], 1)]]  # fmt: skip
    beside_tensor = run_ranks(expert_groups, 4, {"moe_expert_parallel_size": 2, "model_parallel_size": 2})
    assert beside_tensor == [[([0, 2], 0), ([0], 0)], [([1, 3], 0), ([1], 0)], [([0, 2], 1), ([2], 0)],
                             [([1, 3], 1), ([3], 0)]]  # fmt: skip


def test_the_pipeline_engine_brings_its_own() -> None:
    with pytest.raises(AssertionError, match="its own mpu"):
        Mpu(Mesh(pipe=Axis(2, 0)))
