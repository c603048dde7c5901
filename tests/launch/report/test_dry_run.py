"""What `--dry-run` shows a person: where the ranks are, and no word that only a program can read."""

from __future__ import annotations

import pytest

from neoxargs.launch.cluster.hosts import Resources
from neoxargs.launch.launchers.command import command
from neoxargs.launch.report import dry_run
from neoxargs.resolve import Text, complete, draft
from tests.support import smallest

TWO = Resources({"w0": [0, 1], "worker-1": [3]}, "cuda", {"hostfile": "hosts"}, remote=True)


def shown(launcher: str, brief: bool, resources: Resources = TWO) -> str:
    config = complete(draft([Text("my.yml", f"{smallest.YAML}launcher: {launcher}\n")]), resources.gpus)
    return dry_run.dry_run(config, resources, command(config, resources, "/s.py", {}), brief)


def test_the_ranks_of_each_machine():
    assert "# Where the ranks are\nw0        rank 0 1 on GPU 0 1\nworker-1  rank 2 on GPU 3\n" in shown("pdsh", True)
    many = Resources({f"w{number}": [0, 1, 2] for number in range(40)}, "cpu", {"hostfile": "hosts"}, remote=True)
    assert "w15  rank 45-47\n... 40 machines in all\n" in shown("pdsh", True, many)
    assert "Where the ranks are" not in shown("pdsh", True, Resources({"localhost": [0, 1]}, "cuda"))


@pytest.mark.parametrize("launcher", ["pdsh", "ssh"])
def test_a_person_sees_nothing_encoded_and_a_pipe_the_whole_command(launcher):
    assert "eyJ" not in shown(launcher, brief=True)
    assert shown(launcher, brief=False).count("_config eyJ") == 3
    if launcher == "ssh":
        assert """'--world_info={"w0": [0, 1], "worker-1": [3]}'""" in shown(launcher, brief=True)
