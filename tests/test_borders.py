"""Who may import what: only `train` knows torch, and a check never waits for it."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "neoxargs"
HEAVY = {"torch", "deepspeed", "megatron", "transformers", "numpy", "tokenizers", "matplotlib", "tensorboard"}
#: Loaded when something is drawn or launched, never by a check.
NOT_FOR_CHECK = {*HEAVY, "rich", "subprocess", "socket", "asyncio", "neoxargs.train", "neoxargs.launch.processes.run"}


def modules(folder: str) -> list[Path]:
    found = [PACKAGE / folder] if folder.endswith(".py") else sorted((PACKAGE / folder).rglob("*.py"))
    assert found and all(path.exists() for path in found)
    return found


def imports(path: Path, everywhere: bool = True) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("folder", ["registry", "resolve", "launch", "tools", "cli.py", "options.py", "problems.py"])
def test_only_train_imports_torch_and_its_neighbours(folder):
    for path in modules(folder):
        assert not {name.partition(".")[0] for name in imports(path)} & HEAVY, path


BORDERS = {
    "registry": ("neoxargs.resolve", "neoxargs.launch", "neoxargs.tools", "neoxargs.train", "yaml", "subprocess"),
    "resolve": ("neoxargs.launch", "neoxargs.tools", "neoxargs.train", "subprocess", "socket"),
    "launch": ("neoxargs.tools", "neoxargs.train"),
    "tools": ("neoxargs.train",),
    "train": ("neoxargs.tools", "neoxargs.cli"),
}


@pytest.mark.parametrize("folder", BORDERS)
def test_borders_between_packages(folder):
    for path in modules(folder):
        crossed = [name for name in imports(path) for border in BORDERS[folder] if f"{name}.".startswith(f"{border}.")]
        assert not crossed, f"{path.relative_to(ROOT)} imports {crossed}"


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules in a process that has checked the quickstart."""
    program = (
        "import sys; from neoxargs.cli import main; code = main(['check', 'configs/quickstart.yml'])\n"
        "from neoxargs.registry.declare import _class_bodies\n"
        "assert not _class_bodies.cache_info().currsize, 'descriptions were parsed from source'\n"
        "print('\\n'.join(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok\n")
    return set(done.stderr.split())


def test_a_check_loads_neither_torch_nor_anything_else_that_takes_long(loaded):
    assert not {name for name in loaded if name.partition(".")[0] in NOT_FOR_CHECK or name in NOT_FOR_CHECK}
    assert {"neoxargs.registry", "neoxargs.resolve", "yaml"} <= loaded
