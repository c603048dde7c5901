"""Which device and host a plan is made for."""

from __future__ import annotations

import pytest

from neoxargs.tools.plan import plan_and_suggest, print_plan
from neoxargs.tools.plan.options import PlanOptions
from tests.support.paths import QUICKSTART


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


@pytest.mark.usefixtures("without_gpu")
def test_a_named_gpu_takes_the_place_of_the_processor_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_plan(PlanOptions([str(QUICKSTART)], device="A100")) == 0
    told = capsys.readouterr().out
    assert "on host0's GPU 0-3" in told and "CPU" not in told


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("changes", [["precision=bfloat16"], ["pipe_parallel_size=32", "num_layers=32"]])
def test_a_run_for_gpus_is_not_planned_on_a_processor(changes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert print_plan(PlanOptions([str(QUICKSTART)], [*changes, "model_parallel_size=8"])) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("plan no verdict: ")
    assert "no device is known: add --device A100-80GB" in told and "CPU" not in told


@pytest.mark.usefixtures("without_gpu")
def test_a_run_on_a_processor_is_held_against_the_memory_of_its_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_and_suggest(PlanOptions([str(QUICKSTART)]))[0].has_verdict
    assert print_plan(PlanOptions([str(QUICKSTART)], host_memory=4)) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("plan fits: ") and "of 4.00 GiB" in told
    assert print_plan(PlanOptions([str(QUICKSTART)], host_memory=1)) == 1
    assert capsys.readouterr().out.startswith("plan       does not fit: a machine needs ")


def test_a_speed_of_a_device_that_could_not_hold_the_run_is_told_as_that(
    middle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*changes: str) -> str:
        assert print_plan(PlanOptions([middle], changes, gpus=8)) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "would not fit" not in told()
    large = told("train_micro_batch_size_per_gpu=32")
    assert "would not fit the A100-80GB whose speed is assumed" in large
    assert "as nobody names the device (the run would not fit it)" in large
