"""Every optimizer, and every option of its gradients, has the same effect on each of DeepSpeed's paths."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.facts.optimizers import OPTIMIZERS, is_onebit
from tests.support.layouts import BF16, FP16
from tests.support.ranks import run_ranks
from tests.support.trials import Losses, Trial, train

BASE = "fp32"
#: Shorter than the gradients of every step.
CLIPPED = {"gradient_clipping": 0.1}


def trial(
    stage: int = 0, json: dict[str, Any] | None = None, zero: dict[str, Any] | None = None, **config: Any
) -> Trial:
    partitioned = {"zero_optimization": {"stage": stage} | (zero or {})} if stage else {}
    return Trial({"zero_optimization.stage": stage, **config}, {**CLIPPED, **(json or {}), **partitioned})


OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
PATHS = {
    BASE: trial(),
    **{f"fp32 ZeRO-{stage}": trial(stage) for stage in (1, 2, 3)},
    "fp32 pp": trial(pipe_parallel_size=2),
    "fp32 ZeRO-1 pipeline": trial(1, pipe_parallel_size=1),
    "fp32 ZeRO-2 offload": trial(2, zero=OFFLOAD, **{"zero_optimization.offload_optimizer.device": "cpu"}),
    "bf16": trial(0, BF16),
    "bf16 ZeRO-2": trial(2, BF16),
    "bf16 ZeRO-3": trial(3, BF16),
    "bf16 pp": trial(0, BF16, pipe_parallel_size=2),
    "fp16": trial(0, FP16),
    "fp16 pp": trial(0, FP16, pipe_parallel_size=2),
}
#: The optimizers whose state is not one number per element of a weight: sm3's accumulators of rows and columns are
#: those of single elements in ZeRO's flat partitions. `deepy diff` says so.
BY_SHAPE = ("sm3",)
#: Learning rates of types that change the loss less, or more, than Adam with the same rate.
RATES = {
    "SGD": 1.0, "MuSGD": 1.0, "ASGD": 1.0, "Adadelta": 10.0, "RAdam": 1.0, "madgrad_wd": 0.2, "Lamb": 0.1,
    "OneBitLamb": 0.1,
}  # fmt: skip
#: The largest difference of a loss from that of fp32 without ZeRO, as a part of what the steps changed of the loss.
NEAR = {"fp32": 0.02, "bf16": 0.25, "fp16": 0.25}
#: Types whose steps are of the gradient's sign: rounding can turn a whole step around. The same differences, widened.
BY_SIGN = {"Rprop": 2.0}
OPTIONS = {
    "prescale": ({"prescale_gradients": True}, {}),
    "predivide": ({"gradient_predivide_factor": 2.0}, {}),
    "communication": ({"communication_data_type": "fp32"}, {}),
    "no overlap": ({}, {"overlap_comm": False}),
    "overlap": ({}, {"overlap_comm": True}),
    "no reduce-scatter": ({}, {"reduce_scatter": False}),
    "no reduce-scatter, prescale": ({"prescale_gradients": True}, {"reduce_scatter": False}),
    "no reduce-scatter, predivide": ({"gradient_predivide_factor": 2.0}, {"reduce_scatter": False}),
    "not contiguous": ({}, {"contiguous_gradients": False}),
    "small buckets": ({}, {"reduce_bucket_size": 1500}),
    "round robin": ({}, {"round_robin_gradients": True}),
}


def is_refused(option: str, stage: int) -> bool:
    """Whether a rule refuses an option of the reduction (`divided_gradients_need_all_reduce`)."""
    return (stage >= 2 and option in ("prescale", "predivide")) or (stage == 3 and option.endswith("predivide"))


def of_optimizer(kind: str, one: Trial) -> Trial:
    rate = RATES.get(kind, 1e-2)
    values = {"optimizer.type": kind, "lr": rate, "optimizer.params.lr": rate, "optimizer.params.weight_decay": 0.1}
    # Those that DeepSpeed builds it builds from its JSON.
    params = {"lr": rate, "weight_decay": 0.1} if kind != "Rprop" else {"lr": rate}
    return Trial(one.config | values, one.deepspeed | {"optimizer": {"type": kind, "params": params}})


def paths_of(kind: str) -> dict[str, Trial]:
    """Return the paths on which check allows an optimizer."""
    if is_onebit(kind):
        return {name: one for name, one in PATHS.items() if "ZeRO" not in name}
    # Offloaded, DeepSpeed's own Adagrad is used, which exists for GPUs only.
    return {name: one for name, one in PATHS.items() if kind != "Adagrad" or "offload" not in name}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_takes_the_same_steps(kind: str) -> None:
    if is_onebit(kind):
        pytest.importorskip("deepspeed.runtime.fp16.onebit", reason="DeepSpeed 0.19.7 dropped it, which check says")
    still = of_optimizer(kind, PATHS[BASE])
    still = Trial(still.config | {"lr": 0.0, "optimizer.params.lr": 0.0}, still.deepspeed)
    trials = {"still": still, **{name: of_optimizer(kind, one) for name, one in paths_of(kind).items()}}
    found: dict[str, Losses] = run_ranks(train, 2, trials, 5, timeout=280)[0]
    expected = found[BASE].train
    effect = max(abs(one - other) for one, other in zip(expected, found["still"].train, strict=True))
    assert effect > 0.01
    different = {
        name: (losses.train, expected)
        for name, losses in found.items()
        if name != "still"
        and losses.train != pytest.approx(expected, abs=NEAR[name[:4]] * BY_SIGN.get(kind, 1.0) * effect)
    }
    assert different == {} or (kind in BY_SHAPE and BASE not in different and "fp32 pp" not in different)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.shows("weight_decay_incr_style", "start_weight_decay", "end_weight_decay")
def test_a_weight_decay_that_changes_is_that_of_each_step() -> None:
    """From 0, which the first step has, to a decay so strong that it shows."""
    rises = {"weight_decay_incr_style": "linear", "start_weight_decay": 0.0, "end_weight_decay": 80.0, "train_iters": 5}
    usual = {"weight_decay": 1.0, "optimizer.params.weight_decay": 1.0, "lr": 1e-2, "optimizer.params.lr": 1e-2}
    trials = {name: Trial(one.config | usual | rises, one.deepspeed) for name, one in PATHS.items()}
    constant = {"none": Trial(PATHS[BASE].config | usual | {"weight_decay": 0.0}, PATHS[BASE].deepspeed)}
    found: dict[str, Losses] = run_ranks(train, 2, trials | constant, 5, timeout=280)[0]
    expected, none = found[BASE].train, found["none"].train
    assert expected[:2] == pytest.approx(none[:2], rel=1e-5)
    assert abs(expected[-1] - none[-1]) > 0.005
    effect = max(abs(one - other) for one, other in zip(expected, none, strict=True))
    different = {
        name: (losses.train, expected)
        for name, losses in found.items()
        if name in trials and losses.train != pytest.approx(expected, abs=NEAR[name[:4]] * effect)
    }
    assert different == {}


#: Types without weight decay, for which `check` says that it has no effect.
WITHOUT_DECAY = ("sm3", "Rprop")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_optimizer_reads_the_weight_decay_of_its_step() -> None:
    rises = {"weight_decay_incr_style": "linear", "start_weight_decay": 0.0, "end_weight_decay": 5.0, "train_iters": 5}
    found: dict[str, Losses] = run_ranks(train, 2, {
        f"{kind} {name}": Trial(one.config | changes, one.deepspeed)
        for kind in OPTIMIZERS for one in [of_optimizer(kind, PATHS[BASE])]
        for name, changes in (("zero", {**rises, "end_weight_decay": 1e-9}), ("rises", rises))
        if not is_onebit(kind)
    }, 5, timeout=280)[0]  # fmt: skip
    for kind in {name.split()[0] for name in found}:
        zero, rising = found[f"{kind} zero"].train, found[f"{kind} rises"].train
        assert zero[:2] == pytest.approx(rising[:2], rel=1e-6), kind  # the first step has no decay
        assert (zero[-1] != pytest.approx(rising[-1], rel=1e-6)) == (kind not in WITHOUT_DECAY), kind


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_options_of_the_reduction_change_nothing_but_rounding() -> None:
    stages = (0, 1, 2, 3)
    trials = {
        f"{name}, ZeRO-{stage}": trial(stage, json, zero)
        for name, (json, zero) in {"base": ({}, {}), **OPTIONS}.items()
        for stage in stages
        if (stage or not zero) and not is_refused(name, stage)
    }
    found: dict[str, Losses] = run_ranks(train, 2, trials, 4, timeout=280)[0]
    expected = found["base, ZeRO-0"]
    different = {
        name: (losses.train, losses.norms)
        for name, losses in found.items()
        if losses.train != pytest.approx(expected.train, rel=1e-5)
        or losses.norms != pytest.approx(expected.norms, rel=1e-4)
    }
    assert different == {}
