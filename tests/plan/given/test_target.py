"""The device and host that a plan is for."""

from __future__ import annotations

import pytest

from neoxargs.base.text import GIB
from neoxargs.plan.command import plan_and_suggest, print_plan
from neoxargs.plan.given.options import PlanOptions
from tests.support.paths import QUICKSTART
from tests.support.plans import planned


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


@pytest.mark.usefixtures("without_gpu")
def test_a_named_gpu_replaces_the_cpu_in_all_of_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_plan(PlanOptions([str(QUICKSTART)], device="A100")) == 0
    output = capsys.readouterr().out
    assert "on host0's GPUs 0-3" in output and "CPU" not in output


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("changes", [["precision=bfloat16"], ["pipe_parallel_size=32", "num_layers=32"]])
def test_a_run_for_gpus_is_not_planned_for_a_cpu(changes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert print_plan(PlanOptions([str(QUICKSTART)], [*changes, "model_parallel_size=8"])) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert output.startswith("plan no verdict: ")
    assert "the device's memory is unknown: add --device A100-80GB or --gpu-memory GIB" in output
    assert "CPU" not in output


@pytest.mark.usefixtures("without_gpu")
def test_a_run_on_a_cpu_is_compared_with_the_memory_of_its_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_and_suggest(PlanOptions([str(QUICKSTART)]))[0].has_verdict
    assert print_plan(PlanOptions([str(QUICKSTART)], host_memory=4)) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert output.startswith("plan fits: ") and "of the host's 4.00 GiB" in output
    assert print_plan(PlanOptions([str(QUICKSTART)], host_memory=1)) == 1
    assert capsys.readouterr().out.startswith("plan       does not fit: a host needs ")


@pytest.mark.usefixtures("without_gpu")
def test_a_share_of_the_host_is_left_to_its_system() -> None:
    needed = plan_and_suggest(PlanOptions([str(QUICKSTART)]))[0].host_peak / GIB
    for host_memory, fits in ((needed * 1.01, False), (needed * 1.06, True)):
        assert plan_and_suggest(PlanOptions([str(QUICKSTART)], host_memory=host_memory))[0].fits is fits


def test_an_assumed_device_that_could_not_hold_the_run_is_mentioned(
    middle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def text(*changes: str) -> str:
        assert print_plan(PlanOptions([middle], changes, gpus=8)) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "usable memory)" not in text()
    large = text("train_micro_batch_size_per_gpu=32")
    assert "(an A100-80GB, whose speed is assumed, has only 77.6 GiB of usable memory)" in large
    assert "speed of an A100-80GB (whose memory is too small for this run), because no --device is given" in large


BF16, FP16, FP32 = ("precision=bfloat16", "precision=fp16", "precision=fp32")


@pytest.mark.parametrize(("device", "settings", "warning"), [
    ("V100", [BF16], "no-bf16-tensor-cores"), ("V100", [FP16], ""), ("V100", [FP32], ""), ("A100", [BF16], ""),
    ("A100", [FP32], "fp32-without-tf32"), ("A100", [FP32, "float32_matmul_precision=high"], ""), ("CPU", [FP32], ""),
    ("A100", [FP16], "fp16-beside-bf16"), ("RTX4090", [FP16], "fp16-beside-bf16"), ("CPU", [FP16], ""),
])  # fmt: skip
def test_a_precision_that_is_slower_on_the_device_than_another_is_a_warning(
    device: str, settings: list[str], warning: str, middle: str
) -> None:
    found = {problem.id for problem in planned(middle, *settings, gpus=2, device=device).warnings}
    assert found & {"no-bf16-tensor-cores", "fp32-without-tf32", "fp16-beside-bf16"} == {warning} - {""}


def test_warnings_about_the_device_are_printed(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(PlanOptions([middle], [BF16], gpus=8, device="V100"))
    assert "V100-32GB has no tensor cores for bf16" in capsys.readouterr().err


def test_the_rates_of_a_cpu_have_three_digits(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(PlanOptions([str(QUICKSTART)], device="CPU"))
    output = " ".join(capsys.readouterr().out.split())
    assert "large matrix multiplications run at 0.07 TFLOP/s, attention at 0.0" in output
