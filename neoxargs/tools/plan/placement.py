"""Which host and slot each rank has, and with which coordinates; ranks go to hosts in the order of the hostfile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from neoxargs.launch.cluster.hosts import Resources
from neoxargs.sizes.layout import Layout

#: GPUs of one host where nobody names hosts.
PER_HOST = 8


class Seat(NamedTuple):
    """One rank."""

    rank: int
    host: str
    slot: int
    tensor: int
    pipe: int
    data: int


def seats(resources: Resources, layout: Layout) -> Iterator[Seat]:
    """In rank order. Neighbours share a tensor parallel group, then come the replicas, then the next stage."""
    slots = ((host, slot) for host, numbers in resources.hosts.items() for slot in numbers)
    for rank, (host, slot) in enumerate(slots):
        rest, tensor = divmod(rank, layout.tensor)
        pipe, data = divmod(rest, layout.data)
        yield Seat(rank, host, slot, tensor, pipe, data)


def spread(resources: Resources, per_host: int) -> Resources:
    """GPUs that are only pretended, on hosts of `per_host` each."""
    count = resources.gpus
    names = [f"host{index}" for index in range(-(-count // per_host))]
    hosts = {name: list(range(min(per_host, count - index * per_host))) for index, name in enumerate(names)}
    return replace(resources, hosts=hosts, remote=len(hosts) > 1)


def hosts_of_stages(resources: Resources, layout: Layout) -> list[list[str]]:
    """For each stage its hosts, in order."""
    by_stage = groupby(seats(resources, layout), key=lambda seat: seat.pipe)
    return [list(dict.fromkeys(seat.host for seat in members)) for _, members in by_stage]


def across_hosts(resources: Resources, layout: Layout) -> bool:
    """Does a tensor parallel group lie on more than one host?"""
    starts, first = set[int](), 0
    for slots in resources.hosts.values():
        starts.add(first)
        first += len(slots)
    return any(start % layout.tensor for start in starts)


def named(hosts: Sequence[str]) -> str:
    """`node0`, `node0, node1`, or the first and the last of many."""
    return ", ".join(hosts) if len(hosts) <= 2 else f"{hosts[0]} ... {hosts[-1]} ({len(hosts)})"
