"""One sshd and one Slurm for all tests that need them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import cluster


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster.Environ]:
    """The environment in which `ssh` reaches two hosts."""
    with cluster.two_hosts(tmp_path_factory.mktemp("ssh")) as environ:
        yield environ


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster.Environ]:
    """The environment in which `srun` reaches the one node of a Slurm."""
    with cluster.slurm(tmp_path_factory.mktemp("slurm")) as environ:
        yield environ
