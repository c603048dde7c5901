"""Launchers for the tests of this folder."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from neoxargs.launch import launchers
from neoxargs.launch.launchers import BUILT_IN
from neoxargs.launch.launchers.launcher import Launcher
from neoxargs.registry import REGISTRY, plugins

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
