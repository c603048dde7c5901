"""The weight decay of an iteration is megatron-core's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.weight_decay import WeightDecay

ITERATIONS, BATCH = 37, 8


@pytest.mark.slow  # importing megatron-core takes ten seconds
@pytest.mark.filterwarnings("ignore")  # of packages that megatron-core can do without
@pytest.mark.parametrize("style", ["linear", "cosine"])
@pytest.mark.parametrize(("start", "end"), [(0.0, 0.1), (0.033, 0.1)])
def test_it_is_that_of_megatron_core(style: str, start: float, end: float) -> None:
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    scheduler = OptimizerParamScheduler(
        SimpleNamespace(param_groups=[]), init_lr=0.0, max_lr=0.1, min_lr=0.0, lr_warmup_steps=0, lr_decay_steps=100,
        lr_decay_style="constant", start_wd=start, end_wd=end, wd_incr_steps=ITERATIONS * BATCH, wd_incr_style=style,
    )  # fmt: skip
    ours = WeightDecay(style, start, end, ITERATIONS, end)
    for iteration in range(ITERATIONS + 3):
        assert ours.after(iteration) == pytest.approx(scheduler.get_wd(), rel=1e-12, abs=1e-15)
        scheduler.step(BATCH)


@pytest.mark.slow  # importing megatron-core takes ten seconds
@pytest.mark.filterwarnings("ignore")  # of packages that megatron-core can do without
def test_along_a_ramp_it_counts_samples() -> None:
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    values = {
        "weight_decay_incr_style": "linear", "start_weight_decay": 0.0, "end_weight_decay": 0.1, "weight_decay": 0.1,
        "train_samples": 1000, "train_batch_size": 64, "rampup_batch_size": [16, 16, 300],
    }  # fmt: skip
    ours, sizes = WeightDecay.of(values.get), BatchSizes.of(values.get)
    theirs = OptimizerParamScheduler(
        SimpleNamespace(param_groups=[]), init_lr=0.0, max_lr=0.1, min_lr=0.0, lr_warmup_steps=0, lr_decay_steps=1000,
        lr_decay_style="constant", start_wd=0.0, end_wd=0.1, wd_incr_steps=1000, wd_incr_style="linear",
    )  # fmt: skip
    for iteration in range(sizes.iterations_in(1000)):
        assert ours.after(iteration) == pytest.approx(theirs.get_wd(), rel=1e-12)
        theirs.step(sizes.of_iteration(iteration))
    assert ours.after(5) < WeightDecay("linear", 0.0, 0.1, sizes.iterations_in(1000), 0.1).after(5)


def test_without_a_style_it_is_constant() -> None:
    values = {"weight_decay_incr_style": "constant", "start_weight_decay": 0.3, "end_weight_decay": 0.5}
    found = WeightDecay.of((values | {"weight_decay": 0.1, "train_iters": 10}).get)
    assert not found.changes and found.after(5) == 0.1
