"""Norms weight by weight and the noise scale: counted once per weight in every layout, and only where asked for."""

from __future__ import annotations

import math
from unittest.mock import patch

import pytest
import torch

from neoxargs.train.engine.reports import NoiseScale
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from tests.support.layouts import BF16, FP16, PIPE, TENSOR, TWO_STAGES
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY, batch, small
from tests.support.trials import SAMPLES, Trial, staged, started

ASKED = {
    "log_grad_norm": True, "log_grad_pct_zeros": True, "log_param_norm": True, "log_optimizer_states": True,
    "log_gradient_noise_scale": True, "gradient_noise_scale_n_batches": 2,
}  # fmt: skip
LAYOUTS = {
    1: {"plain": Trial(), "pipeline": Trial(PIPE), "fp16": Trial({}, FP16), "fp16, pipeline": Trial(PIPE, FP16)},
    2: {"tp2": Trial(TENSOR | {"gradient_noise_scale_cpu_offload": True}), "pp2": Trial(TWO_STAGES), "dp2": Trial(),
        "dp2, pipeline, ZeRO-1": Trial(PIPE, {"zero_optimization": {"stage": 1}}), "dp2, ZeRO-1": staged(1),
        "dp2, ZeRO-2": staged(2), "dp2, ZeRO-3": staged(3), "dp2, ZeRO-2, bf16": staged(2, **BF16)},
    4: {"tp2 x pp2": Trial(TENSOR | TWO_STAGES)},
}  # fmt: skip
NAMES = [(world, name) for world, trials in LAYOUTS.items() for name in trials]
Reports = list[dict[str, float]]
#: A softmax does not see the keys' bias: its gradient is rounding, and what Adam makes of it is too.
ROUNDING = "query_key_value.bias"


def watched(trials: dict[str, Trial]) -> dict[str, Reports]:
    """What three steps report of each trial."""
    running = started(trials, **ASKED)
    return {name: [built.engine.train_step(built.batches).reports for _ in range(3)] for name, built in running}


@pytest.fixture(scope="module")
def reports() -> dict[str, Reports]:
    found: dict[str, Reports] = {}
    for world, trials in LAYOUTS.items():
        found |= run_ranks(watched, world, trials, timeout=300)[0]
    return found


@pytest.fixture(scope="module")
def alone() -> GPT:
    """The same model after one backward pass over the first batch, without any engine."""
    model = GPT(small(), VOCABULARY, Weights(1), Shared())
    model(*batch(SAMPLES, seed=0)).backward()
    return model


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("world", "name"), NAMES)
def test_the_first_step(reports: dict[str, Reports], alone: GPT, world: int, name: str) -> None:
    first = reports[name][0]
    near = {"rel": 2e-2} if "16" in name else {"rel": 1e-4, "abs": 1e-8}
    whole = math.sqrt(sum(float(weight.grad.square().sum()) for weight in alone.parameters()))
    clip = min(1.0, 1.0 / whole)
    for weight_name, weight in alone.named_parameters():
        norm = float(weight.grad.norm())
        assert first[f"gradient_norms/{weight_name}"] == pytest.approx(norm, **near), weight_name
        moment = 0.1 * clip * norm  # (1 - beta1) x gradient
        assert first[f"optimizer_state_norms/{weight_name}_exp_avg"] == pytest.approx(moment, **near), weight_name
        assert f"optimizer_state_norms/{weight_name}_exp_avg_sq" in first
        if "16" not in name and not weight_name.endswith(ROUNDING):
            zeros = 100 * float((weight.grad == 0).float().mean())
            assert first[f"pct_grad_zeros/{weight_name}"] == pytest.approx(zeros, abs=0.1), weight_name
    assert first["pct_grad_zeros/embedding.word_embeddings.weight"] >= 100 * 3 / 64  # three rows pad
    assert "train/noise_scale" not in first


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("world", "name"), NAMES)
def test_every_layout_reports_the_same(reports: dict[str, Reports], world: int, name: str) -> None:
    for here, plain in zip(reports[name], reports["plain"], strict=True):
        assert set(here) == set(plain)
        for series in plain:
            if series.startswith("parameter_norms/") and not series.endswith(ROUNDING):
                assert here[series] == pytest.approx(plain[series], rel=5e-2 if "16" in name else 1e-3), series
    assert reports[name][1]["train/noise_scale"] == pytest.approx(
        reports["plain"][1]["train/noise_scale"], rel=0.1 if "16" in name else 1e-2
    )


def test_the_noise_scale_finds_the_noise() -> None:
    """Gradients of a known mean and variance: the scale is variance / squared mean, in samples."""
    generator = torch.Generator().manual_seed(1)
    noise = NoiseScale(batch_size=8, count=4)
    for _ in range(400):
        batches = 0.5 + torch.randn(4, 100, generator=generator) * math.sqrt(3 / 8)  # 3: variance of a sample's
        noise.update(float(batches[-1].square().sum()), float(batches.mean(0).square().sum()))
    assert noise.value == pytest.approx(3 / 0.25, rel=0.1)


def unasked() -> tuple[int, dict[str, float]]:
    with patch("neoxargs.train.engine.reports.StepReporter._report_gradients") as computed:
        _, built = next(started({"": Trial()}))
        reports = built.engine.train_step(built.batches).reports
    return computed.call_count, reports


def test_nothing_is_done_unasked() -> None:
    assert run_ranks(unasked, 1)[0] == (0, {})
