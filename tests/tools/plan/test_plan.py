"""Verdicts, and how long a plan may take."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from neoxargs.tools.plan import plan_and_suggest, print_plan
from neoxargs.tools.plan.options import PlanOptions
from tests.support.paths import NEOX_HEAD, needs_corpus

NEOX_20B = NEOX_HEAD / "20B.yml"


@needs_corpus
def test_neox_20b_fits_where_it_was_trained() -> None:
    made, found = plan_and_suggest(PlanOptions([str(NEOX_20B)], gpus=96, device="A100-40GB"))
    assert made.fits and not found
    assert sum(made.parts.values()) == pytest.approx(20.55e9, rel=0.001)
    assert made.overflows_in is None


def test_without_a_device_there_is_no_verdict(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_plan(PlanOptions([middle], gpus=8, as_json=True)) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["fits"] is None and output["stages"][0]["peak"] > 0


def test_a_host_can_be_too_small(middle: str) -> None:
    offload = ["zero_optimization.stage=2", "zero_optimization.offload_optimizer.device=cpu",
               "train_micro_batch_size_per_gpu=1"]  # fmt: skip
    assert plan_and_suggest(PlanOptions([middle], offload, gpus=8, gpu_memory=40, host_memory=256))[0].fits
    made, _ = plan_and_suggest(PlanOptions([middle], offload, gpus=8, gpu_memory=40, host_memory=16))
    assert made.device_fits and not made.host_fits


def test_ten_thousand_gpus_are_planned_without_torch(middle: str) -> None:
    code = (
        "import sys; from neoxargs.tools.plan import print_plan; from neoxargs.tools.plan.options import PlanOptions; "
        f"print_plan(PlanOptions([{middle!r}], ['gradient_accumulation_steps=4', 'pipe_parallel_size=8'], "
        "gpus=10000, gpu_memory=40, as_json=True)); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert len(json.loads(done.stdout)["placements"]) == 10_000
