"""Versions of the packages that the trainer needs: which were tested, and which are installed."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from neoxargs.base.request import Request
from neoxargs.checks import all as preflight
from neoxargs.checks.machine import packages
from neoxargs.runs.run_spec import resolve_run
from tests.support.paths import ROOT
from tests.support.smallest import YAML


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


@pytest.mark.parametrize("package", packages.TESTED)
def test_the_tested_versions_are_those_of_the_constraints(package: str) -> None:
    major, minor, *_ = pinned()[package].split(".")
    assert packages.TESTED[package] == f"{major}.{minor}"
    bounds = re.search(rf'"{package}>=[\d.]+,<([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert bounds and bounds[1].startswith(f"{major}.")
    # Up to the newest that was tried, in CI or by hand.
    newest = int(bounds[1].rpartition(".")[2]) - 1
    tried = rf"\| {package} \| [\d.]+ to {major}\.{newest} \| .*{major}\.{newest}\.\d+ once by hand"
    assert newest == int(minor) or re.search(tried, (ROOT / "docs/versions.md").read_text())


@pytest.mark.parametrize("package", packages.TESTED)
def test_the_installed_version_is_found(package: str) -> None:
    assert packages.installed_versions()[package.replace("-", "_")] == version(package)


def test_what_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(tmp_path / "missing"), str(tmp_path / "archive.zip")])
    assert "torch" not in packages.installed_versions()


def test_an_untested_version_is_a_warning_of_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "run.yml"
    file.write_text(YAML)
    spec = resolve_run(Request([str(file)], [], gpus=1), {"DS_ACCELERATOR": "cpu"})
    monkeypatch.setattr(packages, "installed_versions", lambda: {"deepspeed": "0.20.1", "megatron_core": "0.16.9"})
    found = preflight.problems(spec, "train", ["files", "machine"])
    (problem,) = [problem for problem in found if problem.id == "package-untested"]
    assert problem.severity == "warning"
    assert problem.what == "deepspeed 0.20.1 is installed, but train.py has been tested only with deepspeed 0.19"
    assert problem.hint == "run pip install 'deepspeed==0.19.*'"
