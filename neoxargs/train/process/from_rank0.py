"""Broadcast of Python objects that only rank 0 can produce, such as the prompts of a user."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")

#: Rank 0 may wait for a user, or load tasks, for any time. A rank that fails closes its connections, which ends a wait.
UNLIMITED = timedelta(days=365)


class FromRank0:
    """Broadcasts of rank 0, for which the other ranks may wait for hours. Every rank makes the same calls.

    The group is of gloo: a broadcast of NCCL that waits occupies a GPU, and NCCL's watchdog ends the run when it has
    waited for longer than the timeout of the other groups.
    """

    def __init__(self) -> None:
        several = dist.is_initialized() and dist.get_world_size() > 1
        self.group = dist.new_group(backend="gloo", timeout=UNLIMITED) if several else None

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.group is None or dist.get_rank() == 0

    def broadcast(self, item: T | None = None) -> T | None:
        """Return rank 0's item on every rank; the items of other ranks are ignored."""
        items = [item]
        if self.group is not None:
            dist.broadcast_object_list(items, 0, group=self.group)
        return items[0]
