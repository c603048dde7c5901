"""`deepy verify` finds faults that are planted in the trainer, and contradicts nothing without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neoxargs.cli import main
from neoxargs.commands.verify import trials
from tests.support import planted

pytestmark = pytest.mark.slow

DENSE = """\
num_layers: 12
hidden_size: 768
num_attention_heads: 12
seq_length: 1024
pos_emb: rotary
padded_vocab_size: 50304
optimizer: {type: Adam, params: {lr: 0.001, betas: [0.9, 0.95]}}
gradient_clipping: 1.0
train_batch_size: 64
train_iters: 1000
"""
EXPERTS = DENSE + "moe_num_experts: 8\nmoe_top_k: 2\nmoe_router_type: topk\nmoe_aux_loss_coeff: 0.01\n"
ADAPTERS = DENSE + "lora: {rank: 4}\n"
DRAWING = DENSE + "hidden_dropout: 0.1\nlog_interval: 10\nreset_attention_mask: true\n"
STEPS = "steps are those of plain torch"
REPLICAS = "ranks with the same part of the model hold the same numbers"
SMALL = {
    "the learning rate follows its formula", "log_interval", "no token sees another document", "reset_attention_mask",
    "a run continues from its checkpoint",
}  # fmt: skip


def verified(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *words: str) -> dict[str, Any]:
    file = tmp_path / "my.yml"
    file.write_text(text)
    main(["verify", str(file), "--json", *words])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def contradicted(report: dict[str, Any]) -> set[str]:
    return {row["name"] for row in report["run"] + report["keys"] if row["outcome"] == "contradicted"}


@pytest.mark.parametrize(
    ("fault", "text", "words", "found"),
    [
        (planted.another_optimizer, DENSE, (), {STEPS, "optimizer.params.betas"}),
        (planted.no_clipping, DENSE, (), {STEPS, "gradient_clipping"}),
        (planted.no_gradient_of_the_router_loss, EXPERTS, (), {"moe_aux_loss_coeff"}),
        (planted.dropout_in_evaluation, DENSE, (), {"an evaluation draws no random numbers"}),
        (planted.a_frozen_layer_moves, ADAPTERS, (), {"what is trained moves, and nothing else"}),
        (planted.no_sum_over_replicas, DENSE, ("--gpus", "2"), {"ranks compute what one process does", REPLICAS}),
        (planted.small_faults, DRAWING, (), SMALL),
        (planted.a_leaking_mask, DENSE, (), {"no token sees a later one"}),
        (planted.a_mask_that_leaks_one_token, DENSE, (), {"no token sees a later one"}),
        (planted.labels_are_the_tokens_themselves, DENSE, (), {"a label is the next token"}),
        (planted.a_wrong_backward_pass, DENSE, (), {"the gradient is the slope of the loss"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_fault_is_found(
    fault: Any,
    text: str,
    words: tuple[str, ...],
    found: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials, "TRIALS", planted.__name__)
    monkeypatch.setenv(planted.VARIABLE, fault.__name__)
    report = verified(tmp_path, capsys, text, *words)
    assert found <= contradicted(report), report
    assert not report["ok"]


@pytest.mark.parametrize(("text", "words"), [(EXPERTS, ()), (ADAPTERS, ("--gpus", "2"))], ids=["experts", "adapters"])
def test_nothing_is_contradicted(
    text: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = verified(tmp_path, capsys, text, *words)
    assert contradicted(report) == set(), report
    outcomes = [row["outcome"] for row in report["keys"]]
    assert outcomes.count("shown") >= 0.8 * len(outcomes)
