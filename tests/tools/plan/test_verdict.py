"""Verdicts, the phase that breaks, and what is suggested instead."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from neoxargs.problems import Problems
from neoxargs.tools.plan import plan_and_suggest, print_plan
from neoxargs.tools.plan.devices import DEVICES, find_device
from neoxargs.tools.plan.options import PlanOptions
from neoxargs.tools.plan.output.svg import memory_chart, stages_chart
from tests.support import smallest
from tests.support.paths import NEOX_HEAD, QUICKSTART, needs_corpus

NEOX_20B = NEOX_HEAD / "20B.yml"


@pytest.fixture
def middle(tmp_path: Path) -> str:
    path = tmp_path / "middle.yml"
    path.write_text(smallest.BILLION)
    return str(path)


@needs_corpus
def test_neox_20b_fits_where_it_was_trained() -> None:
    made, found = plan_and_suggest(PlanOptions([str(NEOX_20B)], gpus=96, device="A100-40GB"))
    assert made.fits and not found
    assert sum(made.parts.values()) == pytest.approx(20.55e9, rel=0.001)
    assert made.overflows_in is None


@needs_corpus
def test_neox_20b_does_not_fit_on_24_gb_and_each_suggestion_does() -> None:
    options = PlanOptions([str(NEOX_20B)], gpus=96, gpu_memory=24)
    made, found = plan_and_suggest(options)
    assert not made.fits and made.overflows_in == "backward"
    assert found
    for suggestion in found:
        again, _ = plan_and_suggest(PlanOptions([str(NEOX_20B)], suggestion.overrides, gpus=96, gpu_memory=24))
        assert again.fits, suggestion.overrides
        assert again.config.batch.train_batch_size == made.config.batch.train_batch_size
    assert [suggestion.cost for suggestion in found] == sorted(suggestion.cost for suggestion in found)


@needs_corpus
def test_a_large_model_is_told_to_be_cut_both_ways() -> None:
    options = PlanOptions([str(NEOX_20B.with_name("175B.yml"))], gpus=1024, device="H100")
    made, found = plan_and_suggest(options)
    assert not made.fits
    both = next(suggestion for suggestion in found if "model_parallel_size" in suggestion.changes)
    layout = both.plan.layout
    assert both.plan.fits and layout.tensor > 1 and layout.pipe > 1
    assert both.plan.config.batch.train_batch_size == made.config.batch.train_batch_size
    assert both is found[0] and both.cost < 1


@pytest.mark.parametrize("memory", [40, 24, 16])
def test_suggestions_fit(middle: str, memory: float) -> None:
    made, found = plan_and_suggest(PlanOptions([middle], gpus=8, gpu_memory=memory))
    assert not made.fits and found
    for suggestion in found:
        assert plan_and_suggest(PlanOptions([middle], suggestion.overrides, gpus=8, gpu_memory=memory))[0].fits


def test_a_suggestion_takes_the_place_of_what_was_set(middle: str) -> None:
    set_before = ["train_micro_batch_size_per_gpu=16"]
    made, found = plan_and_suggest(PlanOptions([middle], set_before, gpus=8, gpu_memory=40))
    smaller = next(suggestion for suggestion in found if "train_micro_batch_size_per_gpu" in suggestion.changes)
    assert smaller.plan.config.batch.train_batch_size == made.config.batch.train_batch_size == 128


def test_where_nothing_small_helps_that_is_said(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_plan(PlanOptions([middle], gpus=1, gpu_memory=2)) == 1
    assert "nothing small helps" in capsys.readouterr().out


def test_without_a_device_there_is_no_verdict(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_plan(PlanOptions([middle], gpus=8, as_json=True)) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is None and told["stages"][0]["peak"] > 0


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


def test_a_host_can_be_too_small(middle: str) -> None:
    offload = ["zero_optimization.stage=2", "zero_optimization.offload_optimizer.device=cpu",
               "train_micro_batch_size_per_gpu=1"]  # fmt: skip
    assert plan_and_suggest(PlanOptions([middle], offload, gpus=8, gpu_memory=40, host_memory=256))[0].fits
    made, _ = plan_and_suggest(PlanOptions([middle], offload, gpus=8, gpu_memory=40, host_memory=16))
    assert made.device_fits and not made.host_fits


def test_what_is_offloaded_to_a_disk_is_not_in_the_host(middle: str) -> None:
    def host(*changes: str) -> dict[str, int]:
        section = "zero_optimization.offload_"
        stage = [f"{section}{change}" for change in changes] + ["zero_optimization.sub_group_size=1000000"]
        made, _ = plan_and_suggest(PlanOptions([middle], ["zero_optimization.stage=3", *stage], gpus=8))
        return made.fullest.host

    state, weights = host("optimizer.device=cpu"), host("param.device=cpu")
    on_disk = host("optimizer.device=nvme", "optimizer.nvme_path=/disk")
    assert on_disk["offloaded"] == 4 * 1_000_000 * 4 < state["offloaded"]  # buffers, of a sub-group, in fp32
    assert weights["pinned"] == weights["offloaded"]  # no buffers of NVMe's
    on_disk = host("param.device=nvme", "param.nvme_path=/disk", "param.max_in_cpu=1000", "param.buffer_size=5000")
    assert (on_disk["offloaded"], on_disk["pinned"]) == (1000 * 2, 5 * 5000 * 2)


def test_a_part_of_the_optimizer_can_stay_on_the_device(middle: str) -> None:
    def held(ratio: float) -> int:
        changes = ["stage=3", "offload_optimizer.device=cpu", f"offload_optimizer.ratio={ratio}"]
        made, _ = plan_and_suggest(PlanOptions([middle], [f"zero_optimization.{change}" for change in changes], gpus=8))
        return made.fullest.phases["step"]["optimizer"]

    assert held(1.0) == 0 < held(0.75) < held(0.5)


def test_devices_are_found_by_short_names() -> None:
    assert find_device("a100-40gb") is find_device("A100 40") is DEVICES["A100-40GB"]
    assert find_device("H200") is DEVICES["H200-141GB"]
    with pytest.raises(Problems, match="A100-40GB"):
        find_device("A100-41GB")


def test_each_step_of_zero_takes_less(middle: str) -> None:
    peaks = []
    for stage in range(4):
        changes = [f"zero_optimization.stage={stage}", "zero_optimization.reduce_bucket_size=50000000",
                   "pipe_parallel_size=0", "checkpoint_activations=true"]  # fmt: skip
        peaks.append(plan_and_suggest(PlanOptions([middle], changes, gpus=64))[0].fullest.total("step"))
    assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) == 4


def test_more_parallel_ranks_take_less_each(middle: str) -> None:
    def peak(*changes: str) -> int:
        return plan_and_suggest(PlanOptions([middle], changes, gpus=8))[0].fullest.peak

    assert peak("model_parallel_size=4") < peak("model_parallel_size=2") < peak()
    assert peak("checkpoint_activations=true") < peak()
    assert peak("pipe_parallel_size=4", "gradient_accumulation_steps=8") < peak("pipe_parallel_size=1")


def test_stages_nearer_to_the_start_have_more_micro_batches_in_flight(middle: str) -> None:
    changes = ["pipe_parallel_size=4", "gradient_accumulation_steps=8", "checkpoint_activations=true"]
    made, _ = plan_and_suggest(PlanOptions([middle], changes, gpus=4))
    kept = [account.phases["forward"]["activations"] for account in made.stage_memory]
    assert kept == sorted(kept, reverse=True) and len(set(kept)) == 4


def test_the_page_holds_everything_itself(middle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    assert print_plan(PlanOptions([middle], gpus=16, gpu_memory=24), page=str(page)) == 1
    written = page.read_text()
    assert "http" not in written and "<script" not in written
    assert "<pre>--set " in written
    assert written.count('class="cell"') == 16
    assert "prefers-color-scheme: dark" in written


def test_each_chart_names_every_part_that_it_shows(middle: str) -> None:
    changes = ["pipe_parallel_size=4", "gradient_accumulation_steps=8", "checkpoint_activations=true"]
    made, _ = plan_and_suggest(PlanOptions([middle], changes, gpus=4, gpu_memory=40))
    for chart in (memory_chart(made), stages_chart(made)):
        shown, named_parts = set(re.findall(r"<title>(\w+):", chart)), re.findall(r"</i>(\w+)</span>", chart)
        assert shown == set(named_parts)
        assert len(named_parts) == len(shown)
    assert "logits" in stages_chart(made)


def test_no_line_runs_through_what_is_written_below_a_bar(middle: str) -> None:
    made, _ = plan_and_suggest(
        PlanOptions([middle], ["pipe_parallel_size=2", "gradient_accumulation_steps=4"], gpus=4, gpu_memory=8)
    )
    drawn = stages_chart(made)
    lines = [(int(top), int(end)) for top, end in re.findall(r'y1="(\d+)" y2="(\d+)"', drawn)]
    captions = [int(y) for y in re.findall(r'y="(\d+)"(?: class="over")?>[^<]* · ', drawn)]
    assert len(lines) == len(captions) == 2
    # letters reach some 10 above where they stand and 3 below
    assert not any(top < y + 3 and y - 10 < end for top, end in lines for y in captions)


def test_a_page_that_cannot_be_written_is_told_and_leaves_nothing(
    middle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    before = list(tmp_path.rglob("*"))
    for name in (tmp_path / "missing" / "plan.html", folder):
        with pytest.raises(Problems, match="cannot be written"):
            print_plan(PlanOptions([middle], gpus=8, as_json=True), page=str(name))
    assert capsys.readouterr().out == ""
    assert list(tmp_path.rglob("*")) == before


def test_a_pipe_is_written_to_and_not_replaced(middle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert print_plan(PlanOptions([middle], gpus=8), page=str(pipe)) == 0
        assert os.read(reader, 15) == b"<!DOCTYPE html>"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_ten_thousand_gpus_are_planned_without_torch(middle: str) -> None:
    code = (
        "import sys; from neoxargs.tools.plan import print_plan; from neoxargs.tools.plan.options import PlanOptions; "
        f"print_plan(PlanOptions([{middle!r}], ['gradient_accumulation_steps=4', 'pipe_parallel_size=8'], "
        "gpus=10000, gpu_memory=40, as_json=True)); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert len(json.loads(done.stdout)["ranks_at"]) == 10_000
