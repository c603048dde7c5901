"""`deepy plan --search` finds what planning every layout by itself finds; `--fewest` the fewest of those tried."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from neoxargs.base.problems import Problems
from neoxargs.base.record import replace
from neoxargs.base.text import GIB
from neoxargs.plan.advice.smaller import overrides_of
from neoxargs.plan.command import plan_and_suggest, print_plan
from neoxargs.plan.estimate import Plan
from neoxargs.plan.given.options import PlanOptions
from neoxargs.plan.search.command import SearchOptions, run_search
from neoxargs.plan.search.search import device_counts
from neoxargs.plan.search.space import RECOMPUTE, Layout, divisions, micro_batches
from neoxargs.resolve import draft, read_files
from tests.support.refused import ids, refused
from tests.support.snapshots import pinned

#: A device of 24 GiB, on which some layouts of the model of 1.2 billion parameters fit.
DEVICE = {"device": "A100-40GB", "gpu_memory": 24.0}

SPLITS = ("train", "valid", "test")


def options(path: str, gpus: int = 4, **changes: Any) -> PlanOptions:
    return PlanOptions([path], gpus=gpus, **{**DEVICE, **changes})


def found_by(options: PlanOptions, capsys: pytest.CaptureFixture[str], **changes: Any) -> Any:
    run_search(replace(options, as_json=True), SearchOptions(**changes))
    return json.loads(capsys.readouterr().out)


def by_itself(path: str, gpus: int) -> Iterator[tuple[Layout, Plan]]:
    """Plan each layout as a user would, with --set."""
    config = plan_and_suggest(options(path, gpus))[0].config
    for division in divisions(config, gpus, 8):
        for micro, steps in micro_batches(division, config.batch.train_batch_size):
            for recompute in RECOMPUTE:
                layout = Layout(division, micro, steps, recompute)
                try:
                    yield layout, plan_and_suggest(options(path, gpus, overrides=overrides_of(layout.changes())))[0]
                except Problems:
                    continue


@pytest.mark.slow
def test_the_search_finds_what_fits_when_each_layout_is_planned_by_itself(
    middle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {str(layout): plan for layout, plan in by_itself(middle, 4) if plan.fits}
    result = found_by(options(middle), capsys)
    layouts = result["layouts"]
    assert 10 < len(layouts) < result["planned"]
    assert len(layouts) == len(expected)
    best = min(expected.values(), key=lambda plan: plan.speed.step)
    assert layouts[0]["step"] == best.speed.step and layouts[0]["peak"] == best.fullest.peak
    front = [layout for layout in layouts if layout["front"]]
    for layout in layouts:
        better = [each for each in layouts if each["step"] < layout["step"] and each["peak"] <= layout["peak"]]
        assert layout["front"] is not bool(better) or layout not in front
    peaks = [layout["peak"] for layout in front]
    assert peaks == sorted(peaks, reverse=True)


def test_a_file_with_a_layout_is_copied_with_the_fastest(
    middle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "# mine\nzero-optimization: {stage: 2}  # often enough\nsequence_parallel: false\nnum_gpus: 1\n"
    Path(middle).write_text(Path(middle).read_text() + own)
    file = tmp_path / "fast.yml"
    given = options(middle, overrides=["lr_decay_iters=9", "pipe_parallel_size=0"])
    fastest = found_by(given, capsys, write=str(file))["layouts"][0]
    plan, _ = plan_and_suggest(options(str(file)))
    assert plan.speed.step == fastest["step"] and plan.fullest.peak == fastest["peak"]
    text = file.read_text()
    assert text.startswith("# The fastest of ") and "# mine\nzero-optimization: {stage: " in text
    assert "sequence_parallel: false\nnum_gpus: 4  # was 1\n" in text and text.count("sequence_parallel") == 1
    pinned(text, "a copy")
    assert f"# deepy train.py {file} --set lr_decay_iters=9\n" in text


def test_experts_are_divided(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    experts = ["moe_num_experts=8", "dialect=neox-2026", "sequence_parallel=false"]
    layouts = found_by(options(middle, 4, overrides=experts, gpu_memory=80.0), capsys)["layouts"]
    assert all(sum(layout["shares"].values()) == pytest.approx(1) for layout in layouts)
    sizes = {layout["set"].get("moe_expert_parallel_size", 1) for layout in layouts}
    assert sizes == {1, 2, 4}
    experts += ["context_parallel_size=2", "num_kv_heads=2", "attention_dropout=0", "model_parallel_size=1"]
    layouts = found_by(options(middle, 4, overrides=experts, gpu_memory=80.0), capsys)["layouts"]
    assert 4 in {layout["set"].get("moe_expert_parallel_size", 1) for layout in layouts}


def test_context_parallel_ranks_are_kept_and_counted(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["context_parallel_size=2", "train_batch_size=16", "attention_dropout=0"]
    found = found_by(options(middle, 4, overrides=given, gpu_memory=80.0), capsys)["layouts"]
    assert found
    for layout in found:
        overrides = [*given[1:], *(f"{name}={value}" for name, value in layout["set"].items())]
        plan = plan_and_suggest(options(middle, 4, overrides=overrides, gpu_memory=80.0))[0]
        assert (plan.layout.ranks, plan.layout.context, plan.config.batch.train_batch_size) == (4, 2, 16)


def test_the_fewest_devices(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"gpu_memory": 4.0}
    result = found_by(options(middle, 32, **small), capsys, fewest=True)
    fewest = result["devices"]
    assert isinstance(fewest, int) and 1 < fewest < 32
    for gpus in (count for count in device_counts(32, 8) if count < fewest):
        assert not found_by(options(middle, gpus, **small), capsys)["layouts"]


def test_the_fewest_devices_are_the_first_line(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_search(options(middle, 8), SearchOptions(fewest=True)) == 0
    first, _, _ = capsys.readouterr().out.partition("\n")
    answer = (
        r"fewest +\d x A100-40GB is the smallest number tried on which a layout fits; the fastest is .*micro batch.*"
    )
    assert re.fullmatch(answer, first), first


def test_the_fewest_gpus_need_no_largest_number(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = replace(options(middle, gpu_memory=4.0, overrides=["train_batch_size=64"]), gpus=None)
    result, limited = (found_by(each, capsys, fewest=True) for each in (given, replace(given, gpus=32)))
    assert result == limited and 1 < result["devices"] < 32
    assert run_search(replace(given, gpus=1), SearchOptions(fewest=True)) == 1
    pinned(capsys.readouterr().out, "no layout")


def test_a_rule_may_forbid_the_smallest_micro_batch(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    paths = {f"{split}_{kind}data_paths=[{kind}x]" for split in SPLITS for kind in ("", "label_", "reward_")}
    kto = ["train_impl=kto", "dialect=neox-2026", "pack_impl=unpacked", "train_batch_size=8", *sorted(paths)]
    layouts = found_by(options(middle, 2, overrides=kto, gpu_memory=80.0), capsys)["layouts"]
    sets = [layout["set"] for layout in layouts]
    assert {each["train_micro_batch_size_per_gpu"] for each in sets} >= {2, 4}
    assert any(each["sequence_parallel"] for each in sets)


def test_where_no_layout_is_possible_the_reasons_are_printed(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_search(options(middle, 7, overrides=["train_batch_size=16", "num_layers=4"]), SearchOptions()) == 1
    printed = capsys.readouterr().out
    pinned(printed, "global batch")
    pinned(printed, "impossible: the")
    assert "3 impossible: tensor-parallel-divides-heads" in printed


def test_where_nothing_fits_the_optimizer_is_offloaded_and_then_none_is_found(
    middle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offloaded = found_by(options(middle, 1, gpu_memory=12.0), capsys)["layouts"]
    assert offloaded and all(each["host_peak"] > 10 * GIB for each in offloaded)
    assert all(each["set"]["zero_optimization.offload_optimizer.device"] == "cpu" for each in offloaded)
    file = tmp_path / "layout.yml"
    assert run_search(options(middle, 1, gpu_memory=4.0), SearchOptions(write=str(file), left_out=True)) == 1
    printed = capsys.readouterr().out
    assert "none fits" in printed and "(3.88 GiB is usable)" in printed
    pinned(printed, "assuming 128")
    assert not file.exists()


@pytest.mark.slow
def test_what_is_printed(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    fitting = found_by(options(middle, 8), capsys)
    assert run_search(options(middle, 8), SearchOptions()) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    layouts, planned = len(fitting["layouts"]), fitting["planned"]
    samples = plan_and_suggest(options(middle, 8))[0].config.batch.train_batch_size
    expected = f"8 x A100-40GB, global batch of {samples:,} samples: {planned} layouts planned, {layouts} fit, "
    expected += f"{planned - layouts} too large"
    assert first == f"search     {expected}"
    assert rest[1].split() == ["front", "step", "memory", "TFLOP/s", "tokens/s", "layout"]
    assert any(line.startswith("fastest    ") and "micro batch" in line for line in rest)
    assert any("% of a step is computation" in line for line in rest)
    assert any(line.startswith("left out   ") for line in rest)
    alike = [layout["front"] and layout["as_fast"] for layout in fitting["layouts"]]
    assert any(f"the first {sum(alike)} cannot be told apart" in line for line in rest)


def test_the_page_has_a_point_for_each_layout(middle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    layouts = found_by(options(middle), capsys, page=str(page))["layouts"]
    text = page.read_text()
    HTMLParser().feed(text)
    samples = plan_and_suggest(options(middle))[0].config.batch.train_batch_size
    assert "4 x A100-40GB</h1>" in text and f"global batch of {samples} samples" in text
    front = sum(layout["front"] for layout in layouts)
    assert text.count('<use class="best') == front
    assert text.count('<use class="point') == len(layouts) - front
    assert text.count("<tr>") == front + 1


def test_a_search_needs_the_memory_of_a_device(middle: str) -> None:
    pinned(refused(run_search, PlanOptions([middle], gpus=4), SearchOptions()))


def test_a_search_needs_a_gpu(middle: str) -> None:
    cpu = PlanOptions([middle], gpus=4, device="CPU", gpu_memory=8)
    for search, name in ((SearchOptions(), "--search"), (SearchOptions(fewest=True), "--fewest")):
        with pytest.raises(Problems, match=f"{name} plans for GPUs only, but the device is CPU"):
            run_search(cpu, search)


def test_each_layout_is_counted_once_or_left_out_for_a_reason(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = found_by(options(middle, 2), capsys)
    layouts, reasons = zip(*((each["layout"], each["reason"]) for each in result["left_out"]), strict=True)
    too_large = [reason for reason in reasons if reason.startswith("needs ")]
    assert too_large and len(layouts) == len(set(layouts))
    assert result["planned"] == len(result["layouts"]) + len(too_large)
    forbidden = [reason for reason in reasons if reason.startswith("impossible: ")]
    assert forbidden and all("(deepy explain " in reason for reason in forbidden)
    run_search(options(middle, 2), SearchOptions(left_out=True))
    printed = capsys.readouterr().out
    assert all(f"  {layout}\n" in f"{printed}\n" for layout in layouts)


def test_the_layout_of_an_offloaded_optimizer_shows_the_memory_of_a_host(
    middle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    run_search(options(middle, 1, gpu_memory=12.0), SearchOptions(page=str(page)))
    pinned(printed := capsys.readouterr().out, "assuming 128")
    assert "; a host needs " in " ".join(printed.split())
    pinned(page.read_text(), "assuming 128")
    assert "memory of a host</th>" in page.read_text()
    run_search(options(middle, 1, gpu_memory=12.0, host_memory=512.0), SearchOptions())
    assert "assuming" not in capsys.readouterr().out


INDIVISIBLE = ["model_parallel_size=2", "pipe_parallel_size=2"]


def test_the_layout_in_the_file_need_not_divide_the_gpus(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    divided = [*INDIVISIBLE, "train_batch_size=24"]
    result = found_by(options(middle, 6, overrides=divided, gpu_memory=80.0), capsys)
    assert result["layouts"] and result["samples"] == 24
    for gpus, overrides, found in (
        (6, INDIVISIBLE, "search-needs-a-batch"),
        (6, [*divided, "hidden_size=2047"], "heads-divide-hidden-size"),
        (8, [*INDIVISIBLE, "zero_optimization.stage=2"], "pipeline-excludes-zero-2"),
    ):
        assert ids(refused(run_search, options(middle, gpus, overrides=overrides), SearchOptions()))[0] == found


def test_the_batch_on_the_fewest_gpus_does_not_depend_on_the_most(
    middle: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    results = [
        found_by(options(middle, gpus, overrides=INDIVISIBLE, gpu_memory=80.0), capsys, fewest=True)
        for gpus in (4, 6, 16)
    ]
    assert [result["samples"] for result in results] == [8, 8, 8]
    pinned(results[0]["assumptions"])


def test_the_fewest_gpus_are_not_those_that_the_file_counts(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    counted = ["global_num_gpus=8"]
    result = found_by(options(middle, 16, overrides=counted, gpu_memory=80.0), capsys, fewest=True)
    assert result["devices"] == 1 and result["samples"] == 64


def test_the_batch_sizes_may_have_other_names(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(middle).write_text(f"{Path(middle).read_text()}gas: 2\n")
    result = found_by(options(middle, 2), capsys)
    assert result["layouts"] and result["samples"] == 32


def test_keys_of_several_files_are_named_for_removal(
    middle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, layout = tmp_path / "other.yml", tmp_path / "layout.yml"
    other.write_text("zero_optimization: {stage: 2, overlap_comm: false}\nsequence_parallel: false\n")
    wanted = replace(options(middle, 2), files=[middle, str(other)])
    run_search(wanted, SearchOptions(write=str(layout)))
    printed = capsys.readouterr().out
    assert f"from {middle}: train_micro_batch_size_per_gpu\n" in printed
    assert f"from {other}: zero_optimization.stage and sequence_parallel\n" in printed
    changes = [flag for flag in shlex.split(printed.splitlines()[-1]) if flag != "--set"]
    plan, _ = plan_and_suggest(replace(wanted, overrides=changes))
    Path(middle).write_text(Path(middle).read_text().replace("train_micro_batch_size_per_gpu: 8\n", ""))
    other.write_text("zero_optimization: {overlap_comm: false}\n")
    merged, _ = plan_and_suggest(replace(wanted, files=[middle, str(other), str(layout)]))
    assert merged.speed.step == plan.speed.step


def test_a_file_without_a_layout_is_combined_with_the_fastest_one(
    middle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = yaml.safe_load(Path(middle).read_text())
    del values["train_micro_batch_size_per_gpu"]
    Path(middle).write_text(yaml.safe_dump({**values, "train_batch_size": 16}))
    layout = str(tmp_path / "layout.yml")
    run_search(options(middle, 2), SearchOptions(write=layout))
    assert f"deepy train.py {middle} {layout}\n" in capsys.readouterr().out
    plan, _ = plan_and_suggest(replace(options(middle, 2), files=[middle, layout]))
    assert plan.speed.step == found_by(options(middle, 2), capsys)["layouts"][0]["step"]


def test_the_front_leaves_out_what_saves_nothing_or_takes_far_longer(
    middle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layouts = found_by(options(middle, 4, gpu_memory=80.0), capsys)["layouts"]
    front = [layout for layout in layouts if layout["front"]]
    assert len(front) > 1 and front[-1]["step"] <= 5 * front[0]["step"]
    usable = 0.97 * 80 * GIB
    assert all(first["peak"] - second["peak"] >= 0.02 * usable for first, second in pairwise(front))
    assert min(layout["peak"] for layout in layouts) < front[-1]["peak"]


def test_no_file_is_overwritten(middle: str, tmp_path: Path) -> None:
    before = Path(middle).read_text()
    for search in (SearchOptions(write=middle), SearchOptions(page=middle)):
        assert ids(refused(run_search, options(middle), search)) == ["output-file-exists"]
    assert ids(refused(print_plan, options(middle), middle)) == ["output-file-exists"]
    assert Path(middle).read_text() == before


def test_a_page_replaces_an_older_one(middle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    print_plan(options(middle), str(page))
    run_search(options(middle, 1), SearchOptions(page=str(page)))
    assert "Layouts" in page.read_text()


@pytest.mark.parametrize("written", ["", "dialect: neox-2026\n"])
def test_the_new_file_has_the_dialect_of_the_files(written: str, middle: str, tmp_path: Path) -> None:
    """The keys of a layout are newer than those of a file of 2021, and would select today's defaults."""
    lines = [line for line in Path(middle).read_text().splitlines() if not line.startswith("dialect")]
    Path(middle).write_text("\n".join(lines) + f"\n{written}")
    before = draft(read_files([middle])).dialect
    layout = tmp_path / "layout.yml"
    run_search(options(middle, 2), SearchOptions(write=str(layout)))
    after = draft(read_files([layout]))
    assert after.dialect.date == before.date and after.dialect.or_else is None
    assert layout.read_text().count("\ndialect: ") == 1
