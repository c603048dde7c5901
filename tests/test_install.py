"""What `pip install` gives: without torch a wheel that checks and plans, with torch one that trains."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT

#: What installing the wheel may bring along (rich needs the last three).
WITHOUT_TORCH = {"neoxargs", "pyyaml", "rich", "markdown-it-py", "mdurl", "pygments"}
SHORT = ["train_iters=3", "eval_iters=0", "eval_interval=100", "checkpoint_factor=3"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def pip(python: Path | str, *words: str) -> None:
    done = subprocess.run([str(python), "-m", "pip", "-q", *words], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist; the wheel is made from the sdist, as pip may do."""
    folder = tmp_path_factory.mktemp("dist")
    builder = environment(folder / "builder")
    pip(builder, "install", "build", "-c", str(ROOT / "constraints.txt"))
    done = subprocess.run([str(builder), "-m", "build", "-o", str(folder), str(ROOT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def environment(folder: Path) -> Path:
    """The Python of a new, empty virtual environment."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def bare(built: Path) -> Path:
    """The folder of programs where nothing but the wheel was asked for."""
    python = environment(built / "bare")
    pip(python, "install", *map(str, built.glob("*.whl")))
    return python.parent


def run(program: Path, *words: str, cwd: Path, code: int = 0) -> str:
    """What it prints; its errors too where it is to fail."""
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([str(program), *words], cwd=cwd, env=environ, capture_output=True, text=True, timeout=400)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stdout + done.stderr
    return done.stdout + (done.stderr if code else "")


def test_only_pyyaml_and_rich_come_along(bare: Path, tmp_path: Path) -> None:
    listed = json.loads(run(bare / "pip", "list", "--format=json", cwd=tmp_path))
    assert {package["name"].lower() for package in listed} - {"pip", "setuptools"} == WITHOUT_TORCH


def test_without_torch_everything_before_the_start_works(bare: Path, tmp_path: Path) -> None:
    deepy = bare / "deepy"
    (tmp_path / "old.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 1}}')
    assert run(deepy, "check", "quickstart.yml", cwd=tmp_path).startswith("ok\n")
    assert "does not fit" in run(deepy, "plan", "pythia-160m", "--gpus=8", "--device=A100-40GB", cwd=tmp_path, code=1)
    assert "num_layers" in run(deepy, "explain", "num_layers", cwd=tmp_path)
    assert "train_batch_size: 8" in run(deepy, "migrate", "old.json", cwd=tmp_path)
    run(deepy, "docs", "-o", "pages", cwd=tmp_path)
    assert {"parameters.md", "neoxargs.schema.json"} <= {path.name for path in (tmp_path / "pages").iterdir()}


def test_docs_are_not_written_into_the_installation(bare: Path, tmp_path: Path) -> None:
    run(bare / "deepy", "docs", cwd=tmp_path, code=1)


def test_a_run_without_torch_is_refused_before_its_start(bare: Path, tmp_path: Path) -> None:
    said = run(bare / "deepy", "train.py", "quickstart", cwd=tmp_path, code=1)
    assert "training needs torch, deepspeed and megatron" in said and "pip install 'WHEEL[train]'" in said


@pytest.mark.parametrize("words", [["data"], ["data", "--chat"], ["export"], ["import"]], ids=" ".join)
def test_a_command_without_its_packages_says_what_to_install(bare: Path, tmp_path: Path, words: list[str]) -> None:
    said = run(bare / "deepy", *words, "--help", cwd=tmp_path, code=1)
    assert f"deepy {words[0]} needs " in said and "pip install 'WHEEL[train]'" in said


def test_help_names_the_installed_command(bare: Path, tmp_path: Path) -> None:
    shown = run(bare / "deepy", "--help", cwd=tmp_path)
    assert "  deepy train.py configs/quickstart.yml" in shown and "deepy.py" not in shown


def test_the_wheel_trains_the_quickstart_from_an_empty_folder(built: Path, tmp_path: Path) -> None:
    python = environment(built / "full")
    pip(python, "install", "--no-deps", *map(str, built.glob("*.whl")))
    # torch and the rest, gigabytes of them, are those of this environment; neoxargs is the wheel's
    here = Path(sysconfig.get_path("purelib"))
    there = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    for entry in here.iterdir():
        if "neoxargs" not in entry.name and not (there / entry.name).exists():
            (there / entry.name).symlink_to(entry)
    sets = [f"--set={setting}" for setting in SHORT]
    run(python.parent / "deepy", "train.py", "quickstart.yml", *sets, cwd=tmp_path)
    made = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("latest")}
    assert made == {"runs"}


def test_what_wheel_and_sdist_hold(built: Path) -> None:
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "neoxargs").rglob("*.py")}
    configs = {str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*.yml")}
    programs = {"deepy.py", "train.py", "generate.py", "eval.py"}
    assert modules <= names
    assert {f"neoxargs/shipped_files/{name}" for name in configs | programs} <= names
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert modules | configs | programs | {"README.md", "LICENSE", "pyproject.toml"} <= inside
