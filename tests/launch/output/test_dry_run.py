"""What `--dry-run` prints: the ranks of each host, and no encoded arguments; `--emit command` has them."""

from __future__ import annotations

import pytest

from neoxargs.hosts.hosts import Resources
from neoxargs.launch.command.command import command
from neoxargs.launch.output import dry_run
from neoxargs.resolve import File, complete, draft
from tests.support import smallest
from tests.support.snapshots import pinned

TWO = Resources({"w0": [0, 1], "worker-1": [3]}, "cuda", {"hostfile": "hosts"}, remote=True)


def printed(launcher: str, resources: Resources = TWO, whole: bool = False) -> str:
    config = complete(draft([File("my.yml", f"{smallest.YAML}launcher: {launcher}\n")]), resources.gpus)
    made = command(config, resources, "/s.py", {})
    return str(made) if whole else dry_run.dry_run(config, resources, made)


def test_the_ranks_of_each_host():
    assert "# Ranks on each host\nw0        rank 0 1 on GPU 0 1\nworker-1  rank 2 on GPU 3\n" in printed("pdsh")
    many = Resources({f"w{number}": [0, 1, 2] for number in range(40)}, "cpu", {"hostfile": "hosts"}, remote=True)
    assert "w15  rank 45-47\n... 40 hosts in total\n" in printed("pdsh", many)
    assert "Ranks on each host" not in printed("pdsh", Resources({"localhost": [0, 1]}, "cuda"))


@pytest.mark.parametrize("launcher", ["pdsh", "ssh"])
def test_encoded_arguments_are_abbreviated_and_emit_command_has_them(launcher):
    text = printed(launcher)
    assert "eyJ" not in text
    assert text.count("_config '<base64: ") == 3
    pinned(text, "command prints")
    assert printed(launcher, whole=True).count("_config eyJ") == 3
    if launcher == "ssh":
        assert """'--world_info=<base64: {"w0": [0, 1], "worker-1": [3]}>'""" in text
