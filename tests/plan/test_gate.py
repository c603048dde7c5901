"""A run that cannot fit the GPUs is refused before it starts, unless --force is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from neoxargs.base.programs import find_script
from neoxargs.base.request import Request
from neoxargs.cli import main
from neoxargs.launch.stages import STAGES, State
from neoxargs.plan.gate import planned_on_rank
from neoxargs.plan.given.rates import Rates
from neoxargs.runs.run_spec import resolve_run
from neoxargs.targets import wire_format
from neoxargs.targets.planned import Planned
from tests.support import smallest
from tests.support.configure import configure
from tests.support.plans import planned as planned_alone
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


def test_a_run_that_cannot_fit_is_refused_with_changes_that_would_fit(
    middle: str, started: list[str], gpus: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    gpus(24 * 1024)
    assert main(["train.py", middle]) == 1
    output = capsys.readouterr().err
    assert "does not fit" in output and "--force" in output and "--set" in output
    assert not started


def test_a_plan_is_for_this_machines_gpus(
    middle: str, gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setattr("neoxargs.hosts.hosts.installed_devices", lambda *_: 1)
    gpus(24 * 1024)
    assert main(["plan", middle, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["planned_for"]["name"] == "H100-80GB"


@pytest.mark.parametrize(
    ("include", "code"), [("localhost:1", 0), ("localhost:0", 1), ("localhost:0,1", 1), ("localhost:2", 0)]
)
def test_only_the_gpus_of_the_run_are_judged(
    middle: str, started: list[str], gpus: Callable[..., None], include: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(8 * 1024, 140 * 1024, 140 * 1024)
    monkeypatch.setattr("neoxargs.hosts.hosts.installed_devices", lambda *_: 3)
    assert main(["train.py", middle, "--set", f"include={include}"]) == code
    assert bool(started) == (code == 0)


@pytest.mark.parametrize("arguments", [["--force"], ["--device", "H200"]])
def test_a_run_starts_with_force_or_on_a_larger_device(
    middle: str, started: list[str], gpus: Callable[..., None], arguments: list[str]
) -> None:
    gpus(24 * 1024)
    assert main(["train.py", middle, "--set", "train_micro_batch_size_per_gpu=2", *arguments]) == 0
    assert started == ["train.py"]


def test_a_named_device_is_checked_without_nvidia_smi(middle: str, started: list[str]) -> None:
    assert main(["train.py", middle, "--device", "V100-16GB"]) == 1
    assert not started


def test_other_scripts_and_unknown_devices_are_not_checked(
    middle: str, started: list[str], gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus(1024)
    monkeypatch.chdir(tmp_path)
    Path("other.py").touch()
    assert main(["other.py", middle]) == 0
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["train.py", middle]) == 0
    assert started == ["other.py", "train.py"]


def test_a_run_within_the_margin_of_error_gets_a_warning(
    middle: str, started: list[str], gpus: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    peak = planned_alone(middle, gpus=1).fullest.peak
    gpus(peak // 2**20)
    assert main(["train.py", middle]) == 0
    assert "warning" in capsys.readouterr().err
    assert started


def test_autotuning_has_no_plan_and_starts(middle: str, started: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    changes = "zero_optimization.stage=[1, 2]", "autotuning.enabled=true", "autotuning_run=tune"
    search = [word for change in changes for word in ("--set", change)]
    assert main(["plan", middle, "--device", "V100-16GB", *search]) == 1
    output = capsys.readouterr().err
    pinned(output, "[plan-of-several-runs]")
    assert "add --set zero_optimization.stage=1" in output
    assert main(["train.py", middle, "--device", "V100-16GB", *search]) == 0
    assert started == ["train.py"]


# -- the planned time that a launch tells its ranks ------------------------------------------------------------------


@pytest.fixture
def planned(started: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Planned | None]:
    """A function that launches train.py and returns what the ranks would be told."""
    told: list[Planned | None] = []

    def start(state: State) -> State:
        told.append(state.spec.planned)
        return state

    monkeypatch.setitem(STAGES, "start", start)

    def launch(*words: str) -> Planned | None:
        assert main(["train.py", *words]) == 0
        return told.pop()

    return launch


def rates_file(folder: Path, device: str, **rates: float) -> None:
    zeros = [[0.0] * len(rates)] * len(rates)
    (folder / "small.rates.yml").write_text(Rates(device, rates, zeros, 0.1, ["a run"]).text())


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yml"
    path.write_text(smallest.YAML)
    return str(path)


@pytest.mark.parametrize("words", [[], ["--force"], ["--device", "H100"]])
def test_the_ranks_are_told_what_a_plan_says(
    words: list[str], small: str, planned: Callable[..., Planned | None], gpus: Callable[..., None]
) -> None:
    gpus(80 * 1024)
    found = planned(small, *words)
    plan = planned_alone(small, gpus=1, device="H100-80GB")
    assert found and found.seconds == pytest.approx(plan.speed.step)
    said = found.device, found.tokens, found.error, found.rates
    assert said == ("H100-80GB", plan.speed.tokens, plan.time_error, "")
    assert found.low < found.seconds < found.high


def test_nothing_is_told_of_devices_that_are_not_known(
    small: str, planned: Callable[..., Planned | None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither of GPUs without a name, nor of CPUs without rates, nor with the rates of another device."""
    assert planned(small) is None
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho Graphics 9000, 80000\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert planned(small) is None
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert planned(small) is None
    rates_file(tmp_path, "A100-80GB", products=0.5)
    assert planned(small) is None


def test_rates_beside_the_file_are_used_on_cpus_and_recorded(
    small: str, planned: Callable[..., Planned | None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rates that are twice too fast give half the time."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    rates, found = {"matmul_single": 0.2, "attention": 0.1, "bandwidth": 0.2}, []
    for factor in (1, 2):
        rates_file(tmp_path, "CPU", **{name: factor * rate for name, rate in rates.items()})
        found.append(planned(small))
    assert found[0].seconds == pytest.approx(2 * found[1].seconds)
    assert found[0].rates == str(tmp_path / "small.rates.yml")
    words = wire_format.script_arguments(configure(), planned=found[0])
    assert wire_format.parse_rank_arguments(words).planned == found[0]


def test_a_damaged_file_of_rates_is_a_warning_and_nothing_is_told(
    small: str, planned: Callable[..., Planned | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.rates.yml").write_text("format: 2\n")
    assert planned(small, "--device", "H100") is not None
    assert "warning" in (shown := capsys.readouterr().err) and "[rates-unreadable]" in shown


def test_a_rank_of_another_launcher_plans_for_hosts_like_its_own(
    small: str, gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight ranks on hosts of four GPUs send more between hosts than on one host."""
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    gpus(*[80 * 1024] * 8)
    request = Request([small], gpus=8, script="train.py")
    spec, found = resolve_run(request, {}), []
    for count in (8, 4):
        monkeypatch.setattr("neoxargs.plan.gate.local_devices", lambda _, count=count: list(range(count)))
        found.append(planned_on_rank(find_script("train.py"), spec, request, None))
    assert found[0].parts["messages"] < found[1].parts["messages"]
