"""ZeRO with weights and optimizer state offloaded to host memory: the loss curve is the same."""

from __future__ import annotations

import pytest

from tests.support.ranks import run_ranks
from tests.support.trials import Trial, staged, started

CPU = {"device": "cpu"}
TRIALS = {
    "kept": staged(2),
    "stage 1": staged(1, zero_optimization={"stage": 1, "offload_optimizer": CPU}),
    "stage 2": staged(2, zero_optimization={"stage": 2, "offload_optimizer": CPU}),
    "stage 3": staged(3, zero_optimization={"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}),
}


def train(trials: dict[str, Trial]) -> dict[str, tuple[list[float], bool]]:
    """Return the losses of four steps, and whether DeepSpeed's optimizer reports that it offloads."""
    found = {}
    for name, built in started(trials):
        losses = [built.step() for _ in range(4)]
        optimizer = built.engine.deepspeed.optimizer
        found[name] = losses, bool(getattr(optimizer, "cpu_offload", False) or optimizer.__dict__.get("offload_param"))
    return found


@pytest.mark.shows("zero_optimization")
def test_training_is_equal_with_optimizer_state_in_host_memory() -> None:
    for rank in run_ranks(train, 2, TRIALS):
        kept, offloads = rank.pop("kept")
        assert not offloads
        for name, (losses, offloads) in rank.items():
            assert losses == pytest.approx(kept, abs=1e-5), name
            assert offloads, name
