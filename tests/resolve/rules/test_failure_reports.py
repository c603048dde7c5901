"""What `check` finds of public failure reports: tests/reference/failure_reports.tsv, and docs/failure-reports.md.

A row whose verdict is the id of a problem has a configuration with the report's mistake, which is checked here.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
import yaml

from neoxargs.commands.explain.catalogue import Example
from neoxargs.commands.explain.example import check_example
from neoxargs.resolve.rules import CHECKS
from tests.support.paths import DOCS
from tests.support.reference import read

REPORTS = read("failure_reports.tsv")
#: Verdicts that are no ids.
NOT_CAUGHT = ("out of reach", "does not arise")
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
RULES = WRITTEN | AFTERWARDS


def ids(config: str) -> set[str]:
    return {problem.id for problem in check_example(Example(config))}


def as_lines(config: str) -> str:
    """Return a flow mapping as one line for each parameter."""
    flow = {
        name: yaml.safe_dump(value, default_flow_style=True, width=1000)
        for name, value in yaml.safe_load(config).items()
    }
    return "".join(f"{name}: {text.removesuffix('...' + chr(10)).strip()}\n" for name, text in flow.items())


def test_every_report_is_caught_or_has_a_reason() -> None:
    claimed = [row for row in REPORTS if row["verdict"] not in NOT_CAUGHT]
    assert [row["address"] for row in claimed if row["verdict"] not in ids(as_lines(row["configuration"]))] == []
    assert [row["address"] for row in REPORTS if row not in claimed and not row["reason"]] == []
    assert len({row["address"] for row in REPORTS}) == len(REPORTS) >= 100


def test_no_repository_is_in_both_parts() -> None:
    parts = [{row["repository"] for row in REPORTS if row["part"] == part} for part in ("written from", "set aside")]
    assert all(parts) and not parts[0] & parts[1]


@pytest.mark.parametrize("rule", RULES)
def test_an_example_with_the_hint_followed_passes(rule: str) -> None:
    example = next(each.example for each in CHECKS if each.id == rule)
    assert rule in ids(example) and rule not in ids(RULES[rule])


def test_the_page_has_the_score() -> None:
    """Of each part: the reports that concern deepy, and how many the rules caught before, as written, and now."""
    page = (DOCS / "failure-reports.md").read_text(encoding="utf-8")
    for part in ("written from", "set aside"):
        verdicts = Counter(row["verdict"] for row in REPORTS if row["part"] == part)
        concern = sum(verdicts.values()) - verdicts["does not arise"]
        now = concern - verdicts["out of reach"]
        then = now - sum(verdicts[rule] for rule in AFTERWARDS)
        before = then - sum(verdicts[rule] for rule in WRITTEN)
        counts = (sum(verdicts.values()), verdicts["does not arise"], concern, before, then, now)
        row = f"| {part} | {' | '.join(map(str, counts))} |"
        assert row in page
    assert set(RULES) == set(re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.M))
