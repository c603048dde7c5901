"""Hosts and coordinates of ranks."""

from __future__ import annotations

from neoxargs.facts.layout import Layout
from neoxargs.hosts.hosts import assumed_resources
from neoxargs.plan.given.placement import group_into_hosts, hosts_of_stages, rank_placements


def test_ranks_follow_the_hostfile() -> None:
    resources, layout = group_into_hosts(assumed_resources(20), 8), Layout(tensor=2, pipe=2, data=5)
    assert [len(slots) for slots in resources.hosts.values()] == [8, 8, 4]
    placements = list(rank_placements(resources, layout))
    assert placements[9] == (9, "host1", 1, 1, 0, 4, 0)
    assert placements[10] == (10, "host1", 2, 0, 1, 0, 0)
    for stage in range(2):
        for replica in range(5):
            ranks = [placement.rank for placement in placements if (placement.pipe, placement.data) == (stage, replica)]
            assert ranks == list(layout.group(stage, replica))
    assert hosts_of_stages(resources, layout) == [["host0", "host1"], ["host1", "host2"]]
