"""One sshd and one Slurm for all tests that need them; a home of its own with DeepSpeed's file of variables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import cluster


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster.Environ]:
    """The environment in which `ssh` reaches two hosts."""
    with cluster.two_hosts(tmp_path_factory.mktemp("ssh")) as environ:
        yield environ


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster.Environ]:
    """The environment in which `ssh` reaches two hosts, of which the second is a machine of its own."""
    with cluster.two_hosts(tmp_path_factory.mktemp("machines"), apart=True) as environ:
        yield environ


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster.Environ]:
    """The environment in which `srun` reaches the one node of a Slurm."""
    with cluster.slurm(tmp_path_factory.mktemp("slurm")) as environ:
        yield environ


@pytest.fixture
def env_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The `.deepspeed_env` of the working directory; the home is empty."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".deepspeed_env").write_text("NCCL_IB_HCA=mlx5\n\nHF_TOKEN = hunter3\n")
    return tmp_path / ".deepspeed_env"
