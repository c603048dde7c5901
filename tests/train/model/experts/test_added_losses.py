"""What layers add to the loss: counted once on every engine, with recomputation and in every precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neoxargs.train.losses.added_losses import AddedLosses, Term
from neoxargs.train.model.experts.router import BALANCE, LOAD, Z
from neoxargs.train.process.mesh import Mesh
from tests.support.layouts import BF16, FP16, PIPE
from tests.support.ranks import run_ranks
from tests.support.trials import Trial, started

WEIGHTS = {"moe_aux_loss_coeff": 0.5, "moe_z_loss_coeff": 0.1}
MOE: dict[str, Any] = {"moe_num_experts": 4, "moe_top_k": 2, "moe_router_type": "topk", "moe_expert_interval": 1}
RECOMPUTE = {"checkpoint_activations": True, "checkpoint_num_layers": 2}
TRIALS = {
    "plain": Trial(MOE | WEIGHTS),
    "pipeline": Trial(MOE | WEIGHTS | PIPE),
    "plain, recomputed": Trial(MOE | WEIGHTS | RECOMPUTE),
    "pipeline, recomputed": Trial(MOE | WEIGHTS | PIPE | RECOMPUTE),
    "selective": Trial(MOE | WEIGHTS | {"checkpoint_activations": "selective"}),
    "fp16": Trial(MOE | WEIGHTS, FP16),
    "bf16, pipeline": Trial(MOE | WEIGHTS | PIPE, BF16),
    "no weights": Trial(MOE),
}


def test_a_term_has_the_gradient_of_its_weight_and_is_recorded_once() -> None:
    losses = AddedLosses(("a", "b"))
    x, a = torch.ones(3, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    losses.begin_step(loss_scale=8.0, micro_batches=2)
    for _ in range(2):
        y = losses.add(x, {"a": Term(a**2, 0.5), "b": Term(torch.tensor(7.0), 0.0)})
        y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    assert a.grad == 2 * (8 / 2) * 0.5 * (2 * 2)
    assert losses.means.over_ranks(Mesh(), torch.device("cpu")) == {"a": 4.0, "b": 7.0}


def first_step(trials: dict[str, Trial]) -> dict[str, tuple[float, float | None, dict[str, float], float]]:
    """Return loss, gradient norm and reports of a step of each trial, and the loss of the next one."""
    found = {}
    for name, training in started(trials):
        result = training.engine.train_step(training.batches)
        found[name] = result.loss, result.grad_norm, result.reports, training.step()
    return found


@pytest.fixture(scope="module")
def steps() -> dict[str, tuple[float, float | None, dict[str, float], float]]:
    return run_ranks(first_step, 1, TRIALS, timeout=300)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TRIALS if name != "no weights"])
def test_every_engine_adds_the_same(steps: Any, name: str) -> None:
    half = name.startswith(("bf16", "fp16"))
    loss, norm, reports, after = steps[name]
    expected = steps["plain"]
    assert loss == pytest.approx(expected[0], abs=2e-3 if half else 1e-5)
    assert norm == pytest.approx(expected[1], rel=3e-2 if half else 1e-4)
    assert reports == pytest.approx(expected[2], rel=5e-2 if half else 1e-5)
    assert after == pytest.approx(expected[3], abs=2e-2 if half else 1e-4)


@pytest.mark.slow
def test_the_losses_change_gradients_and_not_the_reported_loss(steps: Any) -> None:
    loss, norm, reports, _ = steps["plain"]
    without = steps["no weights"]
    assert loss == without[0]
    assert norm > 1.05 * without[1]
    assert reports == without[2]
    assert set(reports) == {BALANCE, Z, LOAD}
    assert 0.9 < reports[BALANCE] < 1.5
    assert 1 <= reports[LOAD] <= 4
