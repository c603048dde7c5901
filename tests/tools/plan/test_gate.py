"""A run that cannot fit the GPUs of this machine is not started, unless --force says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from neoxargs.cli import main
from neoxargs.launch import main as launch_main
from tests.support import smallest


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts that a launch got as far as."""
    scripts: list[str] = []
    monkeypatch.setattr(launch_main, "check_needs", lambda script, spec: scripts.append(Path(script.path).name))
    for stage in ("check_start", "announce"):
        monkeypatch.setattr(launch_main, stage, lambda *_: None)
    for stage in ("prepare", "start_ranks"):
        monkeypatch.setattr(launch_main, stage, lambda *_: 0)
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return scripts


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """An nvidia-smi that reports GPUs of this many MiB."""

    def report(mebibytes: int) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\necho {mebibytes}\necho {mebibytes}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return report


@pytest.fixture
def large(tmp_path: Path) -> str:
    path = tmp_path / "large.yml"
    path.write_text(smallest.BILLION)
    return str(path)


def test_what_cannot_fit_is_refused_with_what_would(
    large: str, started: list[str], gpus: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    gpus(24 * 1024)
    assert main(["train.py", large]) == 1
    told = capsys.readouterr().err
    assert "does not fit" in told and "--force" in told and "--set" in told
    assert not started


@pytest.mark.parametrize("more", [["--force"], ["--device", "H200"]])
def test_it_starts_by_force_or_on_a_larger_device(
    large: str, started: list[str], gpus: Callable[[int], None], more: list[str]
) -> None:
    gpus(24 * 1024)
    assert main(["train.py", large, "--set", "train_micro_batch_size_per_gpu=2", *more]) == 0
    assert started == ["train.py"]


def test_a_named_device_is_enough(large: str, started: list[str]) -> None:
    assert main(["train.py", large, "--device", "V100-16GB"]) == 1
    assert not started


def test_other_scripts_and_unknown_devices_are_left_alone(
    large: str, started: list[str], gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus(1024)
    monkeypatch.chdir(tmp_path)
    Path("other.py").touch()
    assert main(["other.py", large]) == 0
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["train.py", large]) == 0
    assert started == ["other.py", "train.py"]


def test_what_is_close_is_a_warning(
    large: str, started: list[str], gpus: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    from neoxargs.tools.plan import plan_and_suggest
    from neoxargs.tools.plan.options import PlanOptions

    peak = plan_and_suggest(PlanOptions([large], gpus=1))[0].fullest.peak
    gpus(peak // 2**20)
    assert main(["train.py", large]) == 0
    assert "warning" in capsys.readouterr().err
    assert started


def test_a_search_for_the_best_stage_is_no_plan_and_starts(
    large: str, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    search = ["--set", "zero_optimization.stage=[1, 2]", "--set", "autotuning.enabled=true"]
    assert main(["plan", large, "--device", "V100-16GB", *search]) == 1
    told = capsys.readouterr().err
    assert "zero_optimization.stage ([1, 2]) is a list that the autotuner goes through" in told
    assert "add --set zero_optimization.stage=1" in told
    assert main(["train.py", large, "--device", "V100-16GB", *search]) == 0
    assert started == ["train.py"]
