"""One configuration, every layout: the same losses from 1 process, tensor slices, pipeline stages and ZeRO's shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.layouts import BF16, FP16, PIPE, RECOMPUTE, TENSOR, TWO_STAGES, zero
from tests.support.ranks import run_ranks
from tests.support.trials import Losses, Trial, assert_same_curve, curves, overflow, resume, staged

STEPS = 8
#: Whose steps depend on the norms of whole weights.
LAMB = {"optimizer.type": "Lamb"}


ONE_PROCESS = {
    "plain": Trial(),
    "pipeline": Trial(PIPE),
    "plain, recomputed": Trial(RECOMPUTE),
    "pipeline, recomputed": Trial(PIPE | RECOMPUTE | {"checkpoint_num_layers": 2}),
    "bf16": Trial({}, BF16),
    "bf16, pipeline": Trial(PIPE, BF16),
    "fp16": Trial({}, FP16),
    "fp16, pipeline": Trial(PIPE, FP16),
    "fp16 to the end": Trial({"fp16_lm_cross_entropy": True}, FP16),
    "fp16 to the end, pipeline": Trial(PIPE | {"fp16_lm_cross_entropy": True}, FP16),
    "Lamb": Trial(LAMB),
    "bf16, Lamb": Trial(LAMB, BF16),
}
TWO_PROCESSES = {
    "tp2": Trial(TENSOR),
    "tp2, pipeline": Trial(TENSOR | PIPE),
    "pp2": Trial(TWO_STAGES),
    "dp2": Trial(),
    "dp2, pipeline": Trial(PIPE),
    "dp2, pipeline, ZeRO-1": Trial(PIPE, zero(1)),
    "dp2, ZeRO-1": staged(1),
    "dp2, ZeRO-2": staged(2),
    "dp2, ZeRO-3": staged(3),
    "dp2, ZeRO-3, built whole": Trial({}, zero(3)),  # the stage that decides about zero.Init is the configuration's
    "bf16, pp2": Trial(TWO_STAGES, BF16),
    "bf16, dp2": Trial({}, BF16),
    "bf16, dp2, ZeRO-2": staged(2, **BF16),
    "bf16, dp2, ZeRO-3": staged(3, **BF16),
    "Lamb, tp2, pipeline": Trial(LAMB | TENSOR | PIPE),
    "Lamb, dp2, ZeRO-2": staged(2, LAMB),
    "Lamb, dp2, ZeRO-3": staged(3, LAMB),
}
FOUR_PROCESSES = {
    "tp2 x pp2": Trial(TENSOR | TWO_STAGES),
    "dp2 x pp2, ZeRO-1": Trial(TWO_STAGES, zero(1)),
    "pp4, embeddings on stages of their own": Trial(
        {"pipe_parallel_size": 4, "pipe_partition_method": "type:transformer|embedding"}
    ),
    "bf16, pp4, embeddings on stages of their own": Trial(
        {"pipe_parallel_size": 4, "pipe_partition_method": "type:transformer|embedding"} | RECOMPUTE, BF16
    ),
}


@pytest.fixture(scope="module")
def losses() -> dict[str, Losses]:
    return curves({1: ONE_PROCESS, 2: TWO_PROCESSES, 4: FOUR_PROCESSES}, STEPS)


NAMES = list(ONE_PROCESS | TWO_PROCESSES | FOUR_PROCESSES)
HALF = [name for name in NAMES if name.startswith(("bf16", "fp16")) and "Lamb" not in name]
WITH_LAMB = [name for name in NAMES if name.startswith("Lamb, ")]
FP32 = [name for name in NAMES if name not in HALF and "Lamb" not in name]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FP32)
def test_fp32_gives_the_same_curve(losses: dict[str, Losses], name: str) -> None:
    assert_same_curve(losses[name], losses["plain"], norms=1e-3)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", WITH_LAMB)
def test_lamb_gives_the_same_curve(losses: dict[str, Losses], name: str) -> None:
    assert losses[name].train == pytest.approx(losses["Lamb"].train, abs=1e-3)


@pytest.mark.timeout(600)
def test_lamb_finds_the_weights_in_the_bf16_optimizer(losses: dict[str, Losses]) -> None:
    assert losses["bf16, Lamb"].train == pytest.approx(losses["Lamb"].train, abs=3e-2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", HALF)
def test_half_precision_follows_it(losses: dict[str, Losses], name: str) -> None:
    here, plain = losses[name], losses["plain"]
    assert here.train[0] == pytest.approx(plain.train[0], abs=1e-3)
    assert here.train == pytest.approx(plain.train, abs=3e-2)
    assert here.norms[:5] == pytest.approx(plain.norms[:5], rel=3e-2)


@pytest.mark.timeout(600)
@pytest.mark.shows("fp16-lm-cross-entropy")
@pytest.mark.parametrize("engine", ["", ", pipeline"])
def test_logits_in_fp16_give_another_loss(losses: dict[str, Losses], engine: str) -> None:
    found = losses[f"fp16{engine}"].train[0], losses[f"fp16 to the end{engine}"].train[0]
    assert found[0] != found[1]


@pytest.mark.parametrize("layout", [{}, PIPE])
def test_fp16_skips_steps_until_the_loss_scale_fits(layout: dict[str, object]) -> None:
    too_large = {"fp16": {"enabled": True, "initial_scale_power": 30, "hysteresis": 1}}
    losses, skipped, stood_still = run_ranks(overflow, 1, Trial(layout, too_large))[0]
    assert skipped == [True] * 3
    assert losses == [losses[0]] * 3
    assert stood_still


def test_it_learns(losses: dict[str, Losses]) -> None:
    assert losses["plain"].held_out < losses["plain"].train[0] - 0.05


DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1, "warmup": 0.1}
RESUMED_ALONE = {
    "plain": Trial(),
    "recomputed": Trial(PIPE | RECOMPUTE),
    "bf16": Trial({}, BF16),
    "sgd": Trial({"optimizer.type": "SGD", "optimizer.params.momentum": 0.9}),
}
RESUMED_BY_TWO = {
    "tp2": Trial(TENSOR),
    "pp2": Trial(TWO_STAGES),
    "bf16 pp2": Trial(TWO_STAGES, BF16),
    "dp2 zero1 pipeline": Trial(PIPE, zero(1)),
    "dp2 zero2 bf16": staged(2, **BF16),
    "dp2 zero3": staged(3),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("world", "trials"), [(1, RESUMED_ALONE), (2, RESUMED_BY_TWO)])
def test_a_loaded_run_continues_bit_for_bit(tmp_path: Path, world: int, trials: dict[str, Trial]) -> None:
    with_dropout = {name: Trial(trial.config | DROPOUT, trial.deepspeed) for name, trial in trials.items()}
    for rank in run_ranks(resume, world, with_dropout, str(tmp_path), timeout=400):
        for name, (unbroken, resumed) in rank.items():
            assert resumed == unbroken, name
