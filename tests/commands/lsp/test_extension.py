"""The extension for Visual Studio Code: what is built is fixed, and what it asks for exists. Building it needs npm."""

from __future__ import annotations

import json
import re
import tomllib

from tests.support.paths import ROOT

FOLDER = ROOT / "editors" / "vscode"
PACKAGE = json.loads((FOLDER / "package.json").read_text("utf-8"))


def test_every_package_has_one_version() -> None:
    """That in package.json is the one of the lock file, which has a checksum of each package."""
    lock = json.loads((FOLDER / "package-lock.json").read_text("utf-8"))["packages"]
    for kind in ("dependencies", "devDependencies"):
        assert PACKAGE[kind] == lock[""][kind]
        assert {name: lock[f"node_modules/{name}"]["version"] for name in PACKAGE[kind]} == PACKAGE[kind]
    assert [name for name, package in lock.items() if name and "integrity" not in package] == []


def test_its_version_and_settings_are_those_of_the_program() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (PACKAGE["version"], PACKAGE["license"]) == (project["version"], project["license"]["text"])
    settings = {name.removeprefix("deepy.") for name in PACKAGE["contributes"]["configuration"]["properties"]}
    read = re.findall(r'settings\.get[^(]*\("(\w+)"', (FOLDER / "src" / "extension.ts").read_text("utf-8"))
    assert sorted(read) == sorted(settings)
    server = (ROOT / "neoxargs" / "commands" / "lsp" / "server.py").read_text("utf-8")
    assert settings == {"command", *re.findall(r'options\.get\("(\w+)"\)', server)}


def test_its_command_is_that_of_the_guide_and_of_ci() -> None:
    command = "npm run --prefix editors/vscode vsix"
    for file in ("docs/editors.md", ".github/workflows/ci.yml"):
        assert command in (ROOT / file).read_text("utf-8")
    assert PACKAGE["scripts"]["vsix"].startswith("npm ci && ")
