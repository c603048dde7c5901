"""bf16: the gradients of several micro batches are summed in fp32 on every ZeRO stage, unless the user chose a type."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neoxargs.facts.optimizers import accumulates_in_fp32
from neoxargs.train.deepspeed.optimizer_view import Holdings, before_step
from tests.support.layouts import PIPE, TWO_STAGES
from tests.support.ranks import run_ranks
from tests.support.trials import Trial, staged, started

#: Reduced over ranks in fp32, because bf16 on the way would round the sums.
BF16: dict[str, Any] = {"bf16": {"enabled": True}, "communication_data_type": "fp32"}
CHOSEN = {"data_types": {"grad_accum_dtype": "bf16"}}
#: World size -> trials. "chosen": summed in bf16, as the user wants it.
TRIALS = {
    1: {"stage 0": Trial({}, BF16), "pipeline": Trial(PIPE, BF16), "ZeRO-1": staged(1, **BF16),
        "chosen": Trial({}, BF16 | CHOSEN), "chosen, pipeline": Trial(PIPE, BF16 | CHOSEN)},
    2: {"pp2": Trial(TWO_STAGES, BF16), "ZeRO-1, dp2": staged(1, **BF16), "ZeRO-2": staged(2, **BF16),
        "ZeRO-3": staged(3, **BF16)},
}  # fmt: skip


def are_bf16(trials: dict[str, Trial]) -> dict[str, bool]:
    """Return for each trial whether every gradient before the step is a number of bf16."""
    found = {}
    for name, built in started(trials):
        holdings, seen = Holdings(built.engine.deepspeed, built.mesh), []
        before_step(
            built.engine.deepspeed,
            lambda holdings=holdings, seen=seen: seen.extend(
                torch.equal(x, x.to(torch.bfloat16).to(x.dtype)) for x in holdings.gradients().values()
            ),
        )
        built.engine.train_step(built.batches)
        assert seen, name
        found[name] = all(seen)
    return found


@pytest.mark.parametrize("world", TRIALS)
def test_sums_are_in_fp32_unless_bf16_is_chosen(world: int) -> None:
    found = run_ranks(are_bf16, world, TRIALS[world], timeout=200)[0]
    assert found == {name: name.startswith("chosen") for name in TRIALS[world]}


@pytest.mark.parametrize(
    ("changes", "in_fp32"),
    [
        ({}, True), ({"bf16": False}, False), ({"micro_batches": 1}, False), ({"offloaded": True}, False),
        ({"optimizer": "OneBitAdam"}, False), ({"optimizer": "ZeroOneAdam"}, False), ({"chosen": "bf16"}, False),
        ({"chosen": "torch.float32", "micro_batches": 1, "offloaded": True}, True),
        ({"chosen": "fp32", "bf16": False}, False),
    ],
)  # fmt: skip
def test_the_rule(changes: dict[str, Any], in_fp32: bool) -> None:
    usual: dict[str, Any] = {"bf16": True, "micro_batches": 8, "chosen": None, "offloaded": False, "optimizer": "Adam"}
    assert accumulates_in_fp32(**usual | changes) is in_fp32
