"""Fixtures of tests in several folders: hosts, Slurm, files of variables, launchers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neoxargs.hosts import launchers
from neoxargs.hosts.launchers import BUILT_IN
from neoxargs.hosts.launchers.launcher import Launcher
from neoxargs.registry import REGISTRY, plugins
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


NAMES = [launcher.name for launcher in BUILT_IN]


@pytest.fixture(params=[*NAMES, "flux"])
def launcher(request: Any, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    """Each of the package's own, and one that a plugin declares while the test runs."""
    if request.param not in NAMES:
        parameter = REGISTRY.parameters["launcher"]
        monkeypatch.setattr(parameter, "extra_choices", parameter.extra_choices)
        monkeypatch.setattr(plugins, "LOADED", [])
        monkeypatch.setitem(plugins.WIDENED, "launcher", {})
        monkeypatch.setattr(launchers, "LAUNCHERS", dict(launchers.LAUNCHERS))
        monkeypatch.delitem(sys.modules, "tests.plugin.flux", raising=False)
        plugins.load(["tests.plugin.flux"])
    return launchers.LAUNCHERS[request.param]
