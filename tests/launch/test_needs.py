"""What offloading to a drive needs of this machine is asked before the ranks start."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from smallest import YAML

from neoxargs.launch import needs, ops
from neoxargs.launch.settle import Settled, settle

OFFLOAD = """\
pipe_parallel_size: 0
zero_optimization:
  stage: 3
  offload_optimizer:
    device: nvme
    nvme_path: {path}
"""


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "missing", lambda *_: [])


def settled(folder: Path, path: Path, more: str = "") -> Settled:
    file = folder / "run.yml"
    file.write_text(YAML + OFFLOAD.format(path=path) + more)
    return settle([str(file)], [], None, {"DS_ACCELERATOR": "cpu"}, gpus=1)


def told(settled: Settled, word: str) -> list[str]:
    return [f"{problem.where}: {problem.what}" for problem in needs.files(settled) if word in problem.what]


def test_a_folder_that_is_there_or_can_be_made(tmp_path: Path) -> None:
    assert told(settled(tmp_path, tmp_path), "nvme_path") == []
    assert told(settled(tmp_path, tmp_path / "to be" / "made"), "nvme_path") == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = YAML.count("\n") + 6
    place = f"{tmp_path / 'run.yml'}:{line}:5: zero_optimization.offload_optimizer.nvme_path"
    below = tmp_path / "file" / "swap"
    assert told(settled(tmp_path, below), "nvme_path") == [f"{place} ({below}): {tmp_path / 'file'} is a file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_belongs_to_others(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o555)
    assert told(settled(tmp_path, tmp_path / "theirs"), "cannot be written to")


def test_other_machines_are_not_asked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    here = settled(tmp_path, tmp_path / "file")
    assert len(told(here, "nvme_path")) == 1
    assert told(replace(here, resources=replace(here.resources, remote=True)), "nvme_path") == []


def test_a_drive_talks_to_gpus_only(tmp_path: Path) -> None:
    on_gpus = settled(tmp_path, tmp_path, "aio: {use_gds: true}\n")
    on_cpus = replace(on_gpus, resources=replace(on_gpus.resources, device="cpu"))
    assert told(on_gpus, "use_gds") == []
    (problem,) = told(on_cpus, "use_gds")
    assert "aio.use_gds moves data between drive and GPU, and the ranks run on CPUs" in problem


def test_mpi_where_torch_was_built_without_it(tmp_path: Path) -> None:
    distributed = pytest.importorskip("torch.distributed")
    problems = told(settled(tmp_path, tmp_path, "distributed_backend: mpi\n"), "distributed_backend")
    assert len(problems) == (0 if distributed.is_mpi_available() else 1)
    assert all(f"run.yml:{YAML.count(chr(10)) + 7}:1: distributed_backend (mpi): " in what for what in problems)
    assert told(settled(tmp_path, tmp_path, "distributed_backend: gloo\n"), "distributed_backend") == []


def test_a_missing_compiler_is_a_problem_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("CXX", "no-compiler")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert len(told(settled(tmp_path, tmp_path), "async_io")) == 1
