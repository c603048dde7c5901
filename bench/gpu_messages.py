"""What a rank sends in one step: operation, type, group and bytes, and whether the backward pass was running."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neoxargs.config.config import Config

#: Parts of the names of operations -> what they are called here; the first that fits.
NAMES = {"reduce_scatter": "reduce-scatter", "gather": "all-gather", "to_all": "all-to-all", "toall": "all-to-all",
         "allreduce": "all-reduce"}  # fmt: skip


class Message(NamedTuple):
    """Calls of one operation by this rank."""

    operation: str
    dtype: str
    group: str
    """The axis of the mesh, or the ranks."""
    in_backward: bool


def sent_in_a_step(trained: Any, batches: Iterator[Any] | None, config: Config) -> dict[str, Any]:
    """Train one step, and return its messages, the process groups there are, and the size of this rank's gradients."""
    from torch.distributed import distributed_c10d

    from neoxargs.train.parallel.layers import is_expert, shape_of
    from neoxargs.train.process import mesh

    with _logged(_axes(config)) as (calls, sizes):
        trained.train_step(batches)
    messages = [{**key._asdict(), "calls": calls[key], "bytes": sizes[key]} for key in sizes]
    weights = [weight for weight in trained.deepspeed.module.parameters() if weight.requires_grad]
    groups = {"count": len(distributed_c10d._world.pg_names), "split": mesh._splits()}
    # Those of divided experts are summed over other ranks.
    gradients = sum(shape_of(weight).numel() for weight in weights if not is_expert(weight))
    return {"messages": messages, "groups": groups, "gradients": gradients}


def _axes(config: Config) -> dict[tuple[int, ...], str]:
    """Return this rank's groups: ranks -> axis of the mesh."""
    import torch.distributed as dist

    from neoxargs.train.process.mesh import groups_of_axes

    axes: dict[tuple[int, ...], str] = {}
    for name, rows in groups_of_axes(config, dist.get_world_size()).items():
        for ranks in rows.tolist():
            if dist.get_rank() in ranks:
                axes.setdefault(tuple(ranks), name.replace("_", " "))
    return axes


@contextmanager
def _logged(axes: dict[tuple[int, ...], str]) -> Iterator[tuple[Counter[Message], Counter[Message]]]:
    """Count calls and bytes of the operations within the block, of every class of process groups."""
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    from tests.support.collectives import OPERATORS, tensors_in

    calls: Counter[Message] = Counter()
    sizes: Counter[Message] = Counter()
    running = threading.local()  # an operation, which may call others

    def recording(name: str, inner: Any) -> Any:
        def call(group: Any, *arguments: Any, **keywords: Any) -> Any:
            tensors = list(tensors_in([*arguments, *keywords.values()]))
            outermost, ranks = not getattr(running, "now", False), tuple(dist.get_process_group_ranks(group))
            if tensors and outermost and len(ranks) > 1:
                operation = next((short for part, short in NAMES.items() if part in name), name)
                # -1 where no backward pass runs in this thread
                during = torch._C._current_graph_task_id() != -1
                where = axes.get(ranks) or ("all" if len(ranks) == dist.get_world_size() else "-".join(map(str, ranks)))
                message = Message(operation, str(tensors[0].dtype).removeprefix("torch."), where, during)
                calls[message] += 1
                sizes[message] += _size(operation, sum(x.numel() * x.element_size() for x in tensors), len(ranks))
            running.now = True
            try:
                return inner(group, *arguments, **keywords)
            finally:
                running.now = not outermost

        return call

    with ExitStack() as patches:
        for kind in {type(group) for group in distributed_c10d._world.pg_names}:
            for name in OPERATORS:
                if hasattr(kind, name):
                    patches.enter_context(patch.object(kind, name, recording(name, getattr(kind, name))))
        yield calls, sizes


def _size(operation: str, total: int, ranks: int) -> int:
    """Return the bytes of a message. total: of all its tensors; those of some operations are its input and output."""
    if operation in ("reduce-scatter", "all-gather"):
        return total * ranks // (ranks + 1)
    return total // 2 if operation == "all-to-all" else total
