"""What `check` finds of public failure reports: tests/reference/failure_reports.tsv, and docs/failure-reports.md.

A row whose verdict is the id of a problem has a configuration with the report's mistake, which is checked here.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from neoxargs.cli import main
from neoxargs.commands.explain.catalogue import Example, catalogue
from neoxargs.commands.explain.example import as_files
from neoxargs.resolve.rules import CHECKS
from tests.support.finetuning import token_file
from tests.support.paths import DOCS, ROOT
from tests.support.reference import read

REPORTS = read("failure_reports.tsv")
#: Verdicts that are no ids.
NOT_CAUGHT = ("out of reach", "does not arise")
#: The tests of checks.
CHECKED = ROOT / "tests" / "checks"
#: Id -> the example of the rule with its hint followed. Written from the reports, before those of other repositories
#: were read.
WRITTEN = {
    "warm-up-ends-before-the-run": "scheduler: {type: WarmupLR, params: {warmup_num_steps: 60}}",
    "decay-ends-with-the-run": "lr_decay_iters: 100\nlr_decay_style: cosine",
    "total-steps-end-with-the-run": "scheduler: {type: WarmupDecayLR, params: {total_num_steps: 100}}",
    "rate-decays": "scheduler: {type: WarmupDecayLR, params: {warmup_num_steps: 10}}",
    "intervals-fall-into-the-run": "log_interval: 100",
    "evaluation-costs-less-than-training": "eval_interval: 100\neval_iters: 10",
    "learning-rate-suits-the-size": "num_layers: 40\nnum_attention_heads: 40\nhidden_size: 5120\nlr: 0.0001",
    "learning-rate-suits-the-finetuning": "hidden_size: 512\nlora: {rank: 8, alpha: 32}\nlr: 0.0003",
    "pipeline-stages-are-mostly-busy": "num_layers: 8\npipe_parallel_size: 8\ngradient_accumulation_steps: 32",
    "router-balances-the-load": "moe_num_experts: 4\nmoe_router_type: topk\nmoe_aux_loss_coeff: 0.01",
    "restarting-positions-have-the-mask": "reset_position_ids: true\nreset_attention_mask: true",
    "validation-data-is-not-training-data": "train_data_paths: [a]\nvalid_data_paths: [b]\ntest_data_paths: [c]",
    "steps-move-the-weights": "bf16: {enabled: true, bf16_master_weights_and_grads: true}\n"
    "zero_optimization: {stage: 1}\nlr: 1.0e-3",
}
#: Written after those reports were read, too.
AFTERWARDS = {
    "fp16-suits-the-model": "precision: bfloat16\nload: base\nfinetune: true\nnorm: rmsnorm\nactivation: swiglu"
}
#: Written after the reports of the first three parts were read, and before those of `set aside again` were.
SECOND = {
    "warm-up-leaves-time-to-train": "train_iters: 100\nwarmup: 0.05",
    "decay-lasts-most-of-the-run": "train_iters: 1000\nlr_decay_iters: 1000\nlr_decay_style: cosine\nmin_lr: 1.0e-4",
    "fixed-loss-scale-lifts-gradients": "precision: fp16\nfp16: {enabled: true, loss_scale: 1024}",
    "loss-scale-settles-early": "train_iters: 40\nprecision: fp16\nfp16: {enabled: true, initial_scale_power: 16}",
    "extra-save-iters-are-kept": "save: out\ncheckpoint_factor: 10\nextra_save_iters: [15]",
}
#: The same, of which files and machines are a part: the tests of `checks` show both.
OF_FILES = (
    "data-without-ends", "data-repeated", "data-mostly-padding", "data-mostly-cut", "size-unlike-the-name",
    "fp16-beside-bf16", "tensor-parallel-across-hosts",
)  # fmt: skip
#: Ids of problems of disks and checkpoints -> the tests that show them.
ELSEWHERE = {
    "disk-too-small": "machine/test_disk_space.py",
    "disk-too-small-for-all": "machine/test_disk_space.py",
    "checkpoint-lr-jumps": "checkpoint/test_schedule.py",
    "checkpoint-training-changed": "checkpoint/test_samples.py",
}
RULES = WRITTEN | AFTERWARDS | SECOND
PARTS = ("written from", "set aside", "written from again", "set aside again")


def ids(config: str) -> set[str]:
    """Return the ids of the problems of a configuration, beside two token files."""
    with as_files(Example(config)) as request:
        token_file(Path("data"), [[7] * 20] * 10, np.uint16)
        token_file(Path("beyond"), [[7, 70_000]])
        with contextlib.redirect_stdout(io.StringIO()) as told:
            main(["check", *request.files, "--gpus", str(request.gpus), "--json"])
        return {problem["id"] for problem in json.loads(told.getvalue())["problems"]}


def as_lines(config: str) -> str:
    """Return a flow mapping as one line for each parameter."""
    flow = {
        name: yaml.safe_dump(value, default_flow_style=True, width=1000)
        for name, value in yaml.safe_load(config).items()
    }
    return "".join(f"{name}: {text.removesuffix('...' + chr(10)).strip()}\n" for name, text in flow.items())


def test_every_report_is_caught_or_has_a_reason() -> None:
    claimed = [row for row in REPORTS if row["verdict"] not in NOT_CAUGHT]
    shown = [row for row in claimed if row["verdict"] not in ELSEWHERE]
    assert [row["address"] for row in shown if row["verdict"] not in ids(as_lines(row["configuration"]))] == []
    assert [row["address"] for row in REPORTS if row not in claimed and not row["reason"]] == []
    assert len({row["address"] for row in REPORTS}) == len(REPORTS) >= 200
    assert ELSEWHERE.keys() <= catalogue().keys()
    assert all((CHECKED / file).is_file() for file in ELSEWHERE.values())


def test_no_repository_is_in_two_parts_of_which_one_was_set_aside() -> None:
    parts = {part: {row["repository"] for row in REPORTS if row["part"] == part} for part in PARTS}
    assert all(parts.values()) and not parts["written from"] & parts["set aside"]
    assert not parts["set aside again"] & set().union(*(parts[part] for part in PARTS[:3]))


@pytest.mark.parametrize("rule", RULES)
def test_an_example_with_the_hint_followed_passes(rule: str) -> None:
    example = next(each.example for each in CHECKS if each.id == rule)
    assert rule in ids(example) and rule not in ids(RULES[rule])


def test_the_page_has_the_score() -> None:
    """Of each part: the reports that concern deepy, and how many were caught before, by the first rules, and now."""
    page = (DOCS / "failure-reports.md").read_text(encoding="utf-8")
    for part in PARTS:
        rows = [row for row in REPORTS if row["part"] == part]
        concern = [row for row in rows if row["verdict"] != "does not arise"]
        now = [row for row in concern if row["verdict"] != "out of reach"]
        # Of a problem that was extended, a reason says since when it finds the report.
        later = [row for row in now if row["verdict"] in (*AFTERWARDS, *SECOND, *OF_FILES) or row["reason"]]
        first = len(now) - len(later)
        before = first - sum(row["verdict"] in WRITTEN for row in now if row not in later)
        counts = (len(rows), len(rows) - len(concern), len(concern), before, first, len(now))
        row = f"| {part} | {' | '.join(map(str, counts))} |"
        assert row in page
    assert {*RULES, *OF_FILES} == set(re.findall(r"^\| `([a-z0-9-]+)` \| (?!\d)", page.partition("## False")[0], re.M))
