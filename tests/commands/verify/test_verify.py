"""`deepy verify` finds faults that are planted in the trainer, and contradicts nothing without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neoxargs.cli import main
from neoxargs.commands.verify import trials
from neoxargs.train import coord_check
from tests.support import planted
from tests.support.small_gpt import small

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
LION = DENSE.replace("Adam", "Lion")
MUON = DENSE.replace("Adam", "Muon")
#: BASE: the shapes of `small_gpt.SMALL`, whose layers are half as wide as those of the small run.
MUP = DENSE + "use_mup: true\nbase_shapes_file: BASE\n"
DPO = DENSE + "train_impl: dpo\ndataset_impl: pairwise\npack_impl: unpacked\n" + "".join(
    f"{side}_{part}{kind}_data_paths: [{side}]\n"
    for side in ("pos", "neg") for part in ("train", "valid", "test") for kind in ("", "_label")
)  # fmt: skip
KTO = DENSE + "train_impl: kto\npack_impl: unpacked\n" + "".join(
    f"{part}{kind}_data_paths: [a]\n" for part in ("train", "valid", "test") for kind in ("", "_label", "_reward")
)  # fmt: skip
PHASES = DENSE + (
    "lr: 0.001\nlr_schedule: [{style: linear, until: 5%, from: 0, to: 0.001}, {style: constant, until: 50M tokens}, "
    "{style: minus_sqrt, to: 0.0001}]\n"
)
WSD = DENSE + "lr_decay_style: WSD\nlr_wsd_decay_iters: 300\nlr_wsd_decay_style: linear\nmin_lr: 0.0001\n"
WSD += "weight_decay_incr_style: linear\nstart_weight_decay: 0.0\nend_weight_decay: 0.5\n"
RAMPS = DENSE + (
    "train_micro_batch_size_per_gpu: 16\n"
    "batch_size_schedule: [{until: 50, size: 16}, {size: 64}]\n"
    "seq_length_schedule: [{until: 100, length: 64}, {length: 1024}]\n"
)
STEPS = "steps are those of plain torch"
ROUTER = "the losses of a router of zeros are those of equal probabilities"
REPLICAS = "ranks with the same part of the model hold the same numbers"
RATES = "the learning rate follows its formula"
SMALL = {
    RATES, "log_interval", "no token sees another document", "reset_attention_mask",
    "a run continues from its checkpoint",
}  # fmt: skip


def verified(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *words: str) -> dict[str, Any]:
    file = tmp_path / "my.yml"
    if "BASE" in text:
        text = text.replace(
            "BASE", str(coord_check.save_base_shapes(small(base_shapes_file=str(tmp_path / "base.yml"))))
        )
    file.write_text(text)
    main(["verify", str(file), "--json", *words])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def contradicted(report: dict[str, Any]) -> set[str]:
    return {row["name"] for row in report["run"] + report["keys"] if row["outcome"] == "contradicted"}


#: Faults, none of which contradicts what another one of the same run does.
PLANTED = [
    ((planted.another_optimizer,), DENSE, (), {STEPS, "optimizer.params.betas"}),
    (
        (planted.no_clipping, planted.no_gradient_of_the_router_loss),
        EXPERTS, (), {STEPS, "gradient_clipping", "moe_aux_loss_coeff"},
    ),
    ((planted.swapped_betas,), LION, (), {STEPS}),
    ((planted.one_rate_without_its_divisor,), MUP, (), {STEPS}),
    ((planted.router_losses_of_another_size,), EXPERTS, (), {STEPS, ROUTER}),
    ((planted.small_faults,), DRAWING, (), SMALL),
    (
        (planted.labels_are_the_tokens_themselves, planted.a_mask_that_leaks_one_token, planted.a_wrong_backward_pass),
        DENSE, (),
        {"a label is the next token", "no token sees a later one", "the gradient is the slope of the loss"},
    ),
    (
        (planted.a_frozen_layer_moves, planted.a_leaking_mask),
        ADAPTERS, (), {"what is trained moves, and nothing else", "no token sees a later one"},
    ),
    (
        (planted.no_sum_over_replicas, planted.dropout_in_evaluation),
        DENSE, ("--gpus", "2"),
        {"ranks compute what one process does", REPLICAS, "an evaluation draws no random numbers"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("faults", "text", "words", "found"), PLANTED, ids=[" ".join(each.__name__ for each in row[0]) for row in PLANTED]
)
def test_planted_faults_are_found(
    faults: tuple[Callable[[], None], ...],
    text: str,
    words: tuple[str, ...],
    found: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials, "TRIALS", planted.__name__)
    monkeypatch.setenv(planted.VARIABLE, " ".join(fault.__name__ for fault in faults))
    report = verified(tmp_path, capsys, text, *words)
    assert found <= contradicted(report), report
    assert not report["ok"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (EXPERTS, ()),
        (ADAPTERS, ("--gpus", "2")),
        (MUON, ("--gpus", "2")),
        (MUP, ()),
        (DPO, ()),
        (KTO, ()),
        (PHASES, ()),
        (WSD, ()),
        (RAMPS, ()),
    ],
    ids=["experts", "adapters", "muon", "mup", "dpo", "kto", "phases", "wsd", "ramps"],
)
def test_nothing_is_contradicted(
    text: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = verified(tmp_path, capsys, text, *words)
    assert contradicted(report) == set(), report
    assert RATES in {row["name"] for row in report["run"] if row["outcome"] == "shown"}
    outcomes = [row["outcome"] for row in report["keys"] if "_data_paths" not in row["name"]]
    assert outcomes.count("shown") >= 0.8 * len(outcomes)
