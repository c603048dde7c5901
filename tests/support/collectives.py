"""What a rank sends: every collective operation, and every message to another rank, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from neoxargs.train.process.messages import OPERATIONS

#: The methods of a process group that communicate.
OPERATORS = OPERATIONS[dist.ProcessGroup]
#: What compiled graphs call. The compiler itself must find them unchanged.
FUNCTIONAL = ("all_gather_into_tensor", "all_reduce", "all_reduce_", "reduce_scatter_tensor")


class Collective(NamedTuple):
    """One operation of this rank."""

    operator: str
    ranks: tuple[int, ...]
    """Of the run, in the group."""
    peer: int | None
    """The other rank of a message, or the source of a broadcast; None if all do the same."""
    tensors: tuple[tuple[torch.dtype, int], ...]
    """Type and number of elements of each."""


@contextmanager
def logged(compiled: bool = False) -> Iterator[list[Collective]]:
    """Record what this process sends within the block. compiled: in compiled graphs too, none of which is new."""
    found: list[Collective] = []
    with ExitStack() as patches:
        for name in OPERATORS:
            if hasattr(dist.ProcessGroup, name):
                recording = _recording(name, getattr(dist.ProcessGroup, name), found)
                patches.enter_context(patch.object(dist.ProcessGroup, name, recording))
        for name in FUNCTIONAL if compiled else ():
            operator = getattr(torch.ops._c10d_functional, name)
            patches.enter_context(patch.object(operator, "default", _of_graph(name, operator.default, found)))
        yield found


def _recording(name: str, inner: Any, found: list[Collective]) -> Any:
    def call(group: Any, *arguments: Any, **keywords: Any) -> Any:
        ranks = tuple(dist.get_process_group_ranks(group))
        values = [*arguments, *keywords.values()]
        tensors = tuple((x.dtype, x.numel()) for x in tensors_in(values))
        found.append(Collective(name, ranks, _peer(name, values, ranks), tensors))
        return inner(group, *arguments, **keywords)

    return call


def _peer(name: str, values: list[Any], ranks: tuple[int, ...]) -> int | None:
    if name in ("send", "recv"):
        return ranks[int(values[1])]
    root = next((value.rootRank for value in values if hasattr(value, "rootRank")), None)
    return None if root is None else ranks[int(root)]


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Yield the tensors among arguments of an operation, and in lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def _of_graph(name: str, inner: Any, found: list[Collective]) -> Any:
    def call(x: Tensor, *arguments: Any) -> Tensor:
        resolve: Any = distributed_c10d
        ranks = tuple(dist.get_process_group_ranks(resolve._resolve_process_group(arguments[-1])))
        found.append(Collective(name, ranks, None, ((x.dtype, x.numel()),)))
        return inner(x, *arguments)  # type: ignore[no-any-return]

    return call
