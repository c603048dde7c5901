"""Host, slot and coordinates of every rank; ranks go to hosts in the order of the hostfile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from neoxargs.launch.cluster.hosts import Resources
from neoxargs.sizes.layout import Layout

#: Where no hosts are named.
GPUS_PER_HOST = 8


class RankPlacement(NamedTuple):
    """Host, slot and coordinates of one rank."""

    rank: int
    host: str
    slot: int
    tensor: int
    pipe: int
    data: int


def rank_placements(resources: Resources, layout: Layout) -> Iterator[RankPlacement]:
    """In rank order. Neighbours share a tensor parallel group, then come the replicas, then the next stage."""
    slots = ((host, slot) for host, numbers in resources.hosts.items() for slot in numbers)
    for rank, (host, slot) in enumerate(slots):
        rest, tensor = divmod(rank, layout.tensor)
        pipe, data = divmod(rest, layout.data)
        yield RankPlacement(rank, host, slot, tensor, pipe, data)


def group_into_hosts(resources: Resources, per_host: int) -> Resources:
    """Pretended GPUs on hosts of `per_host` each, the last one with the rest."""
    count = resources.gpus
    names = [f"host{index}" for index in range(-(-count // per_host))]
    hosts = {name: list(range(min(per_host, count - index * per_host))) for index, name in enumerate(names)}
    return replace(resources, hosts=hosts, remote=len(hosts) > 1)


def hosts_of_stages(resources: Resources, layout: Layout) -> list[list[str]]:
    """For each stage its hosts, in rank order."""
    by_stage = groupby(rank_placements(resources, layout), key=lambda placement: placement.pipe)
    return [list(dict.fromkeys(placement.host for placement in members)) for _, members in by_stage]


def tensor_groups_cross_hosts(resources: Resources, layout: Layout) -> bool:
    """Whether some tensor parallel group lies on more than one host."""
    starts, first = set[int](), 0
    for slots in resources.hosts.values():
        starts.add(first)
        first += len(slots)
    return any(start % layout.tensor for start in starts)


def host_range(hosts: Sequence[str]) -> str:
    """`node0`, `node0, node1`, or the first and the last of many."""
    return ", ".join(hosts) if len(hosts) <= 2 else f"{hosts[0]} ... {hosts[-1]} ({len(hosts)})"
