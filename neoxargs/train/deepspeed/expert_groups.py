"""Expert parallelism in DeepSpeed's engines: which ranks reduce and partition the weights of an expert.

DeepSpeed reads the process groups from its own tables, treats a weight as one of an expert if its `allreduce` is false,
and looks for modules of its class `MoE`. Its optimizers reduce and partition such weights over the ranks that have the
same experts, and divide the sum by the number of all data parallel ranks: the mean over the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import nn

from neoxargs.train.deepspeed import interface
from neoxargs.train.parallel.layers import is_expert
from neoxargs.train.process.mesh import Mesh


def group_name(mesh: Mesh) -> str:
    """Return DeepSpeed's name for the expert parallel groups of this size."""
    return f"ep_size_{mesh.expert.size}"


@contextmanager
def known_to_deepspeed(module: nn.Module, mesh: Mesh) -> Iterator[Callable[[Any], None]]:
    """Within this, DeepSpeed builds an engine whose experts are divided among data parallel ranks, if they are.

    Yields a function that has to be called with this engine.
    """
    from deepspeed.runtime import engine as of_engine

    _fill_tables(mesh)
    holders: list[Any] = [child for child in module.modules() if any(map(is_expert, child.parameters(recurse=False)))]
    if not holders:
        yield lambda engine: None
        return
    for holder in holders:
        holder.num_experts = 0  # read for checkpoints that the engine does not write here
        for weight in filter(is_expert, holder.parameters(recurse=False)):
            weight.allreduce, weight.group_name = False, group_name(mesh)
    # The engine finds layers with experts by `isinstance(module, MoE)`; nothing else of that class is used.
    with interface.replaced(of_engine, MoE=type(holders[0])):
        yield _reduce_experts


def _fill_tables(mesh: Mesh) -> None:
    """Replace the process groups in DeepSpeed's tables by those of the mesh."""
    from deepspeed.utils import groups

    # DeepSpeed itself fills these tables only for its own MoE layers.
    for table, axis in (("_EXPERT_PARALLEL_GROUP", mesh.expert), ("_EXPERT_DATA_PARALLEL_GROUP", mesh.expert_data)):
        of_groups, of_ranks = getattr(groups, table), getattr(groups, f"{table}_RANKS")
        of_groups.clear()
        of_ranks.clear()
        if mesh.expert.size > 1:
            of_groups[group_name(mesh)] = axis.group
            of_ranks[group_name(mesh)] = dist.get_process_group_ranks(axis.group)


def _reduce_experts(engine: interface.Engine) -> None:
    """Let the engine treat the model as a dense one, but for the reduction of gradients.

    Its checkpoints of models with experts, and its reports, need its own class of experts.
    """
    reduce, engine.has_moe_layers = engine.buffered_allreduce_fallback, False

    def reduce_with_experts(*arguments: Any, **keywords: Any) -> None:
        with interface.replaced(engine, has_moe_layers=True):
            reduce(*arguments, **keywords)

    interface.replace(engine, buffered_allreduce_fallback=reduce_with_experts)
