"""bench/plan_against_published.py maps rows, says what it leaves out, and keeps the score in docs/plan.md."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.paths import AFTERWARDS, DOCS, FIGURES
from tests.support.snapshots import pinned

ROW = {
    "source_repo": "bigscience-workshop/bigscience", "path": "train/chronicle.md:10", "model": "GPT 18B",
    "layers": "40", "hidden": "6144", "heads": "32", "kv_heads": "32", "ffn": "24576", "vocab": "50257", "seq": "1024",
    "gpus": "16", "gpu_type": "V100-32GB", "tp": "4", "pp": "4", "dp": "1", "zero_or_fsdp": "none", "micro_batch": "1",
    "global_batch": "4", "act_ckpt": "full", "precision": "fp16", "measured_kind": "peak_mem_gib",
    "measured_value": "25.590", "note": "torch max allocated of rank 0, stage 0 of 4",
}  # fmt: skip


BENCH = "plan_against_published"


def test_memory_is_compared_on_the_measured_stage_and_by_the_named_instrument(bench: ModuleType) -> None:
    last = {**ROW, "note": "torch max allocated of rank 12, stage 3 of 4"}
    shown = {**ROW, "note": "mem = nvidia-smi", "measured_value": "31"}
    score = bench.compare([ROW, last, shown])
    first, second, third = (each.planned for each in score.comparisons)
    assert first == pytest.approx(25.59, rel=0.15) and second != first
    assert 1.15 * first < third <= 32  # cached blocks, context and buffers, and no more than the device has


def test_one_run_counts_once_and_in_one_unit(bench: ModuleType) -> None:
    speed = {**ROW, "measured_kind": "tflops_per_gpu", "measured_value": "40", "note": ""}
    mfu = {**speed, "measured_kind": "mfu", "measured_value": "32"}
    score = bench.compare([ROW, ROW, speed, mfu])
    assert len(score.comparisons) == 2 and len(score.outcomes) == 1
    pinned(score.left_out)


@pytest.mark.parametrize("change", [
    {"precision": "FP8"}, {"note": "expert parallel 8; mixture of experts"}, {"note": "cp 2; virtual pipeline 1"},
    {"note": "virtual pipeline 5"}, {"layers": ""}, {"act_ckpt": ""}, {"measured_kind": "hours"},
    {"measured_value": "about 80"}, {"gpus": "17"}, {"gpu_type": "MI300X"},
    {"path": "tests/functional_tests/test_cases/gpt/other/values.json"},
])  # fmt: skip
def test_a_row_that_cannot_be_planned_is_left_out_with_a_reason(bench: ModuleType, change: dict[str, str]) -> None:
    score = bench.compare([{**ROW, **change}])
    assert not score.comparisons
    pinned(score.left_out)


def test_a_table_with_fewer_columns_can_be_read(bench: ModuleType, tmp_path: Path) -> None:
    kept = {key: value for key, value in ROW.items() if key not in ("kv_heads", "dp")}
    (tmp_path / "few.tsv").write_text("\t".join(kept) + "\n" + "\t".join(kept.values()) + "\n")
    with_all, with_few = (bench.compare(rows) for rows in ([ROW], bench.read_rows(tmp_path / "few.tsv")))
    assert with_all.comparisons == with_few.comparisons and len(with_few.comparisons) == 1


def test_verdicts_of_runs(bench: ModuleType) -> None:
    failed = {**ROW, "measured_kind": "fits/oom", "measured_value": "oom", "note": "", "micro_batch": "64",
              "global_batch": "256", "act_ckpt": "none"}  # fmt: skip
    ran, unforeseen = ROW, {**ROW, "measured_kind": "fits/oom", "measured_value": "oom", "path": "other.md:1"}
    outcomes = bench.compare([failed, ran, unforeseen]).outcomes
    assert [(run.ran, run.fits) for run in outcomes] == [(False, False), (True, True), (False, True)]


def test_sources_are_whole_and_a_third_is_held_out(bench: ModuleType) -> None:
    golden = {**ROW, "path": "tests/functional_tests/test_cases/gpt/a/golden.json"}
    log, line = {**ROW, "path": "experiments/gpt2/run-1.out"}, {**ROW, "path": "docs/page.md:17"}
    assert [bench.source_of(row).removeprefix(f"{ROW['source_repo']}/") for row in (golden, log, line)] == [
        "tests/functional_tests", "experiments/gpt2", "docs/page.md",
    ]  # fmt: skip
    held_out = sum(bench.is_held_out(f"source {number}") for number in range(300))
    assert 70 < held_out < 130


SCORED = [
    pytest.param("score", FIGURES, marks=pytest.mark.skipif(not FIGURES.is_file(), reason=f"no figures in {FIGURES}")),
    ("afterwards", AFTERWARDS),
]


@pytest.mark.slow
@pytest.mark.parametrize(("section", "figures"), SCORED)
def test_the_scores_in_the_docs_are_the_present_ones(bench: ModuleType, section: str, figures: Path) -> None:
    _, written, _ = bench.written_between_markers(DOCS / "plan.md", section)
    score = "\n".join(bench.table(bench.compare(bench.read_rows(figures))))
    command = f"python bench/plan_against_published.py FIGURES --section {section} --write docs/plan.md"
    assert written.strip() == score.strip(), f"run {command}"


def assumed(**columns: str) -> dict[str, float]:
    """What is assumed for a run of GPT-2 on 2 GPUs whose row has these columns."""
    programs = importlib.import_module("published_programs")
    row = {**ROW, "source_repo": "owner/name", "path": "issues/1", "model": "GPT-2", "note": "", "gpus": "2"}
    return programs.assumptions({**row, **columns})  # type: ignore[no-any-return]


def test_ddp_keeps_whole_states_and_buckets(bench: ModuleType) -> None:
    single, autocast = (assumed(zero_or_fsdp="DDP", precision=name) for name in ("fp32", "fp16 AMP"))
    assert (single["weight_bytes"], single["gradient_bytes"], single["optimizer_bytes"]) == (4, 8, 8)
    assert autocast["weight_bytes"] == 6 and single["partitioned"] == 0
    assert assumed(zero_or_fsdp="DDP", precision="fp32", gpus="1")["gradient_bytes"] == 4


def test_eager_kernels_keep_more(bench: ModuleType) -> None:
    fused, eager = (assumed(zero_or_fsdp="ZeRO-3", precision="fp16", gpu_type="A100-40GB", note=note)
                    for note in ("", "transformers, eager attention with dropout"))  # fmt: skip
    assert fused["unfused_attention"] == 0 and eager["unfused_attention"] == 1 and eager["score_memory"] == 7
    assert eager["logit_bytes"] > fused["logit_bytes"] and eager["activation_memory"] == 18


def test_the_stage_of_a_partition_is_the_one_it_names(bench: ModuleType) -> None:
    programs = importlib.import_module("published_programs")
    names = ("FSDP SHARD_GRAD_OP (ZeRO-2)", "FSDP FULL_SHARD (ZeRO-3)", "FSDP2", "ZeRO-1", "DDP", "none")
    assert [programs.zero_stage({"zero_or_fsdp": name}) for name in names] == [2, 3, 3, 1, 0, 0]


def test_runs_with_other_kernels_are_other_runs(bench: ModuleType) -> None:
    failed = {**ROW, "measured_kind": "fits/oom", "measured_value": "oom"}
    score = bench.compare([{**failed, "note": "flash attention 1.0.8"}, {**failed, "note": "flash attention 2"}])
    assert len(score.outcomes) == 2


def test_deepspeed_sends_parts_between_stages_and_megatron_does_not(bench: ModuleType) -> None:
    rows = importlib.import_module("published_rows")
    whole, parts = (rows.case_of({**ROW, "zero_or_fsdp": name}).changes for name in ("none", "ZeRO-1"))
    assert whole["pipeline"] == {"pipe_partitioned": False, "grad_partitioned": False} and "pipeline" not in parts


def test_memory_of_a_gpu_without_a_row_is_in_its_name(bench: ModuleType) -> None:
    rows = importlib.import_module("published_rows")
    cases = [rows.case_of({**ROW, "gpu_type": name}) for name in ("RTX 3090-24GB", "RTX 6000 Ada-48GB", "V100-32GB")]
    assert [(case.device, case.memory) for case in cases] == [
        ("RTX4090-24GB", None), ("RTX4090-24GB", 48.0), ("V100-32GB", None),
    ]  # fmt: skip


def test_hosts_are_as_large_as_the_source_says(bench: ModuleType) -> None:
    rows = importlib.import_module("published_rows")
    columns = {"source_repo": "owner/fork", "gpus": "16", "gpu_type": "V100-32GB"}
    paths = ("x.md", "examples_deepspeed/rebase/x.md")
    usual, dgx2 = (rows.case_of({**ROW, **columns, "path": path}) for path in paths)
    assert (usual.per_host, usual.network) == (8, None)
    assert dgx2.per_host == 16 and dgx2.network == pytest.approx(660e9 / 8 / 16 / 0.75)
