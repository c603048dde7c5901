"""A run that cannot fit the GPUs is refused before it starts, unless --force is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from neoxargs.cli import main
from neoxargs.launch.stages import STAGES, State
from tests.support import smallest
from tests.support.snapshots import pinned


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts whose launch passed the memory check."""
    scripts: list[str] = []

    def start(state: State) -> State:
        scripts.append(Path(state.script.path).name)
        return state

    for stage in list(STAGES)[list(STAGES).index("command") :]:
        monkeypatch.setitem(STAGES, stage, start if stage == "start" else lambda state: state)
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return scripts


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that installs an nvidia-smi which reports GPUs of these MiB, by default two alike."""

    def install(mebibytes: int, *others: int) -> None:
        tool = tmp_path / "nvidia-smi"
        lines = [f"echo NVIDIA H100 80GB HBM3, {each}" for each in (mebibytes, *(others or [mebibytes]))]
        tool.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


@pytest.fixture
def large(tmp_path: Path) -> str:
    path = tmp_path / "large.yml"
    path.write_text(smallest.BILLION)
    return str(path)


def test_a_run_that_cannot_fit_is_refused_with_changes_that_would_fit(
    large: str, started: list[str], gpus: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    gpus(24 * 1024)
    assert main(["train.py", large]) == 1
    output = capsys.readouterr().err
    assert "does not fit" in output and "--force" in output and "--set" in output
    assert not started


def test_a_plan_is_for_this_machines_gpus(
    large: str, gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setattr("neoxargs.hosts.hosts.installed_devices", lambda *_: 1)
    gpus(24 * 1024)
    assert main(["plan", large, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["planned_for"]["name"] == "H100-80GB"


@pytest.mark.parametrize(
    ("include", "code"), [("localhost:1", 0), ("localhost:0", 1), ("localhost:0,1", 1), ("localhost:2", 0)]
)
def test_only_the_gpus_of_the_run_are_judged(
    large: str, started: list[str], gpus: Callable[..., None], include: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(8 * 1024, 140 * 1024, 140 * 1024)
    monkeypatch.setattr("neoxargs.hosts.hosts.installed_devices", lambda *_: 3)
    assert main(["train.py", large, "--set", f"include={include}"]) == code
    assert bool(started) == (code == 0)


@pytest.mark.parametrize("arguments", [["--force"], ["--device", "H200"]])
def test_a_run_starts_with_force_or_on_a_larger_device(
    large: str, started: list[str], gpus: Callable[..., None], arguments: list[str]
) -> None:
    gpus(24 * 1024)
    assert main(["train.py", large, "--set", "train_micro_batch_size_per_gpu=2", *arguments]) == 0
    assert started == ["train.py"]


def test_a_named_device_is_checked_without_nvidia_smi(large: str, started: list[str]) -> None:
    assert main(["train.py", large, "--device", "V100-16GB"]) == 1
    assert not started


def test_other_scripts_and_unknown_devices_are_not_checked(
    large: str, started: list[str], gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus(1024)
    monkeypatch.chdir(tmp_path)
    Path("other.py").touch()
    assert main(["other.py", large]) == 0
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["train.py", large]) == 0
    assert started == ["other.py", "train.py"]


def test_a_run_within_the_margin_of_error_gets_a_warning(
    large: str, started: list[str], gpus: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    from neoxargs.plan.command import plan_and_suggest
    from neoxargs.plan.given.options import PlanOptions

    peak = plan_and_suggest(PlanOptions([large], gpus=1))[0].fullest.peak
    gpus(peak // 2**20)
    assert main(["train.py", large]) == 0
    assert "warning" in capsys.readouterr().err
    assert started


def test_autotuning_has_no_plan_and_starts(large: str, started: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    search = [
        "--set",
        "zero_optimization.stage=[1, 2]",
        "--set",
        "autotuning.enabled=true",
        "--set",
        "autotuning_run=tune",
    ]
    assert main(["plan", large, "--device", "V100-16GB", *search]) == 1
    output = capsys.readouterr().err
    pinned(output, "[plan-of-several-runs]")
    assert "add --set zero_optimization.stage=1" in output
    assert main(["train.py", large, "--device", "V100-16GB", *search]) == 0
    assert started == ["train.py"]
