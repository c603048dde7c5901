"""Host, slot and parallel coordinates of every rank; ranks fill hosts in the order of the hostfile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from neoxargs.base.record import replace
from neoxargs.facts.layout import Layout
from neoxargs.hosts.assumed import assumed_hosts
from neoxargs.hosts.hosts import Resources
from neoxargs.runs.run_spec import RunSpec


class RankPlacement(NamedTuple):
    """Host, slot and coordinates (tensor, context, pipe, data) of one rank."""

    rank: int
    host: str
    slot: int
    tensor: int
    pipe: int
    data: int
    context: int


def rank_placements(resources: Resources, layout: Layout) -> Iterator[RankPlacement]:
    """Yield all ranks in order: tensor parallel rank innermost, then context, data, pipeline stage outermost."""
    slots = ((host, slot) for host, numbers in resources.hosts.items() for slot in numbers)
    for rank, (host, slot) in enumerate(slots):
        rest, tensor = divmod(rank, layout.tensor)
        rest, context = divmod(rest, layout.context)
        pipe, data = divmod(rest, layout.data)
        yield RankPlacement(rank, host, slot, tensor, pipe, data, context)


def on_hosts(spec: RunSpec, device: Literal["cuda", "cpu"], per_host: int) -> RunSpec:
    """Return a run on devices of this kind, with `per_host` of them in each host."""
    return replace(spec, resources=group_into_hosts(replace(spec.resources, device=device), per_host))


def group_into_hosts(resources: Resources, per_host: int) -> Resources:
    """Distribute the GPUs of --gpus over hosts with at most `per_host` each."""
    hosts = assumed_hosts(resources.gpus, per_host)
    return replace(resources, hosts=hosts, remote=len(hosts) > 1)


def hosts_of_stages(resources: Resources, layout: Layout) -> list[list[str]]:
    """Return the hosts of each pipeline stage, in rank order."""
    by_stage = groupby(rank_placements(resources, layout), key=lambda placement: placement.pipe)
    return [list(dict.fromkeys(placement.host for placement in members)) for _, members in by_stage]


def host_range(hosts: Sequence[str]) -> str:
    """Return `node0`, `node0, node1`, or the first and the last of more hosts with their number."""
    return ", ".join(hosts) if len(hosts) <= 2 else f"{hosts[0]} ... {hosts[-1]} ({len(hosts)})"
