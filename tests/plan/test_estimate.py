"""Verdicts of plans, and plans of many GPUs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from neoxargs.plan.command import plan_and_suggest, print_plan
from neoxargs.plan.given.options import PlanOptions
from neoxargs.plan.search.command import SearchOptions, run_search
from tests.support.paths import NEOX_HEAD, needs_corpus
from tests.support.plans import planned

NEOX_20B = NEOX_HEAD / "20B.yml"


@needs_corpus
def test_neox_20b_fits_the_gpus_it_was_trained_on() -> None:
    plan, suggestions = plan_and_suggest(PlanOptions([str(NEOX_20B)], gpus=96, device="A100-40GB"))
    assert plan.fits and all(suggestion.plan.fits and suggestion.cost < 1 for suggestion in suggestions)
    assert sum(plan.parts.values()) == pytest.approx(20.55e9, rel=0.001)
    assert plan.overflows_in is None


def test_there_is_no_verdict_without_a_device(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_plan(PlanOptions([middle], gpus=8, as_json=True)) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["fits"] is None and output["stages"][0]["peak"] > 0


def test_json_has_the_lengths_of_growing_sequences(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    phases = "seq_length_schedule=[{until: 300, length: 256}, {length: 2048}]"
    assert print_plan(PlanOptions([middle], [phases], gpus=8, device="H100", as_json=True)) == 0
    speed = json.loads(capsys.readouterr().out)["speed"]
    assert [length for _, length in speed["lengths"]] == [256, 2048] and speed["shares"]["256"] < 1


def test_a_run_can_exceed_the_memory_of_a_host(middle: str) -> None:
    offload = ["zero_optimization.stage=2", "zero_optimization.offload_optimizer.device=cpu",
               "train_micro_batch_size_per_gpu=1"]  # fmt: skip
    assert planned(middle, *offload, gpu_memory=40, host_memory=256).fits
    plan = planned(middle, *offload, gpu_memory=40, host_memory=16)
    assert plan.device_fits and not plan.host_fits


def test_saving_in_the_background_needs_host_memory_for_the_copies(middle: str) -> None:
    """Weights in 16 bits, and 12 bytes per parameter of optimizer state divided among the replicas."""
    changes = ["save=out", "checkpoint_factor=10", "zero_optimization.stage=1", "pipe_parallel_size=0",
               "precision=bfloat16"]  # fmt: skip
    plans = [
        planned(middle, *changes, *more)
        for more in ([], ["save_in_background=true"], ["save_in_background=true", "no_save_optim=true"])
    ]
    [stage] = plans[0].stage_memory
    size = stage.stage.parameters
    assert [plan.stage_memory[0].host["saving"] for plan in plans] == [0, 2 * size + 12 * -(-size // 8), 2 * size]
    assert plans[1].host_peak - plans[0].host_peak == 8 * plans[1].stage_memory[0].host["saving"]


def test_a_plan_of_ten_thousand_gpus_does_not_import_torch(middle: str) -> None:
    code = (
        "import sys; from neoxargs.plan.command import print_plan; "
        "from neoxargs.plan.given.options import PlanOptions; "
        f"print_plan(PlanOptions([{middle!r}], ['gradient_accumulation_steps=4', 'pipe_parallel_size=8'], "
        "gpus=10000, gpu_memory=40, as_json=True)); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert len(json.loads(done.stdout)["placements"]) == 10_000


def test_a_price_gives_the_cost_of_all_devices(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(PlanOptions([middle], gpus=8, device="H100", price=2.5, as_json=True))
    whole = json.loads(capsys.readouterr().out)
    assert whole["cost"] == pytest.approx(8 * 2.5 * whole["speed"]["total"] / 3600)
    run_search(PlanOptions([middle], gpus=8, device="H100", price=2.5, as_json=True), SearchOptions())
    for found in json.loads(capsys.readouterr().out)["layouts"]:
        assert found["cost"] / found["step"] == pytest.approx(whole["cost"] / whole["speed"]["step"])


def test_the_share_of_the_peak_rate_is_that_of_the_precision(middle: str) -> None:
    peaks = {"bfloat16": 989e12, "fp32": 66.9e12}
    for precision, peak in peaks.items():
        plan = planned(middle, f"precision={precision}", device="H100-80GB")
        assert plan.peak_share == pytest.approx(plan.speed.tflops_per_device * 1e12 / peak)
