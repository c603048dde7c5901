"""Settings of optimizer, schedule, precision and gradients take effect in DeepSpeed's engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch

from neoxargs.resolve import File, complete, draft
from neoxargs.targets.deepspeed import deepspeed_json
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.process import mesh, setup
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY, batch
from tests.support.trials import allow_fp16

STEPS = 6
BASE = """
num_layers: 2
hidden_size: 32
num_attention_heads: 4
seq_length: 16
max_position_embeddings: 16
hidden_dropout: 0
attention_dropout: 0
"""
PLAIN = {"dialect": "neox-2021", "train_iters": 20, "lr": 1e-2, "warmup": 0, "train_batch_size": 4}
SCHEDULER = "scheduler: {{type: {}, params: {{{}}}}}"


class Seen(NamedTuple):
    """Observations of one training run."""

    kind: str = ""
    """The optimizer's class, without DeepSpeed's wrapper."""
    groups: tuple[dict[str, Any], ...] = ()
    state: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    """The learning rate of each update, as the engine reports it."""
    scales: tuple[float, ...] = ()
    moved: tuple[float, ...] = ()
    """Norm of each update over all weights."""
    sent: tuple[tuple[torch.dtype, float], ...] = ()
    """Type and length of each gradient buffer that is reduced over ranks."""
    error: str = ""


def observe(texts: dict[str, str]) -> dict[str, Seen]:
    """Train each configuration for a few steps, on both engines unless its name ends in one of them."""
    setup.start("gloo", seed=1)
    allow_fp16()
    found = {}
    for name, text in texts.items():
        for engine in (0, 1):
            found[f"{name}, {('plain', 'pipeline')[engine]}"] = _observe(f"{text}\npipe_parallel_size: {engine}")
    return found


def _observe(text: str) -> Seen:
    sent: list[tuple[torch.dtype, float]] = []
    try:
        with _listening(sent):
            return _trained(text)._replace(sent=tuple(sent))
    except Exception as error:
        return Seen(error=f"{type(error).__name__}: {error}")
    finally:
        mesh.destroy_groups()


def _trained(text: str) -> Seen:
    from neoxargs.train.engine import build as engine

    # a schedule of DeepSpeed's has a warm-up of its own
    given = f"\n{text}" + "\nwarmup:" * ("scheduler:" in text)
    left = "\n".join(f"{key}: {value}" for key, value in PLAIN.items() if f"\n{key}:" not in given)
    config = complete(draft([File("test", BASE + left + "\n" + text)]), torch.distributed.get_world_size())
    here = mesh.build_mesh(config)
    setup.set_seeds(1)
    built = engine.build(config, deepspeed_json(config), VOCABULARY, here)
    inner, rates, scales, moved, error = built.deepspeed, [], [], [], ""
    for number in range(STEPS):
        before = [weight.detach().float().clone() for weight in inner.module.parameters()]
        rates.append(built.learning_rate())
        scales.append(float(getattr(inner.optimizer, "loss_scale", 1)))
        tokens, labels = batch(4, seed=number)
        mine = slice(here.data.rank, None, here.data.size)
        try:
            built.train_step(iter([MicroBatch(tokens[mine], labels[mine])]))
        except Exception as stop:
            error = str(stop)
            break
        steps = [
            (now.detach().float() - old).norm() for now, old in zip(inner.module.parameters(), before, strict=True)
        ]
        moved.append(float(torch.stack(steps).norm()))
    basic = inner.basic_optimizer
    groups = [{key: value for key, value in group.items() if key != "params"} for group in basic.param_groups]
    state = sorted({key for state in basic.state.values() for key in state})
    return Seen(
        type(basic).__name__, tuple(groups), tuple(state), tuple(rates), tuple(scales), tuple(moved), error=error
    )


@contextmanager
def _listening(sent: list[tuple[torch.dtype, float]]) -> Iterator[None]:
    """Record every tensor of the length of a gradient that is summed over ranks."""
    from deepspeed import comm

    inner = comm.all_reduce

    def all_reduce(tensor: torch.Tensor, *rest: Any, **more: Any) -> Any:
        if tensor.numel() > 1000:
            sent.append((tensor.dtype, float(tensor.float().norm())))
        return inner(tensor, *rest, **more)

    comm.all_reduce = all_reduce
    yield
    comm.all_reduce = inner


SGD = "optimizer: {type: SGD, params: {lr: 0.1}}\nlr: 0.1\nweight_decay: 0\nlr_decay_style: constant"
HIGH = "precision: fp16\nfp16: {initial_scale_power: 30"
LOW = "precision: fp16\nfp16: {initial_scale_power: 4}"
ALONE = {
    "base": "",
    "weight_decay": "weight_decay: 0.3",
    "adam_beta1": "adam_beta1: 0.8",
    "adam_beta2": "adam_beta2: 0.9",
    "adam_eps": "adam_eps: 1.0e-2",
    "lr": "lr: 0.002",
    "in params": (
        "lr: 0.002\noptimizer: {type: Adam, params: {lr: 0.002, betas: [0.8, 0.9], eps: 1.0e-2, weight_decay: 0.3}}"
    ),
    "lr_decay_iters": "lr_decay_iters: 4",
    "min_lr": "lr: 0.01\nlr_decay_iters: 4\nmin_lr: 0.004",
    "warmup": "warmup: 0.25",
    **{style: f"lr_decay_style: {style}\nlr_decay_iters: 8" for style in ("constant", "cosine", "exponential")},
    "WarmupLR": SCHEDULER.format("WarmupLR", "warmup_num_steps: 4, warmup_type: linear, warmup_max_lr: 0.01"),
    "WarmupLR, log": SCHEDULER.format("WarmupLR", "warmup_num_steps: 4, warmup_max_lr: 0.01"),
    "WarmupDecayLR": SCHEDULER.format("WarmupDecayLR", "warmup_num_steps: 2, warmup_type: linear, total_num_steps: 6"),
    "WarmupCosineLR": SCHEDULER.format(
        "WarmupCosineLR", "warmup_num_steps: 2, total_num_steps: 6, warmup_type: linear"
    ),
    "OneCycle": SCHEDULER.format(
        "OneCycle", "cycle_min_lr: 0.001, cycle_max_lr: 0.003, cycle_first_step_size: 2, cycle_momentum: false"
    ),
    "LRRangeTest": SCHEDULER.format(
        "LRRangeTest", "lr_range_test_min_lr: 0.001, lr_range_test_step_size: 2, lr_range_test_step_rate: 1.0"
    ),
    "SGD": SGD,
    "clipped": f"{SGD}\ngradient_clipping: 0.01",
    "SGD with momentum": "optimizer: {type: SGD, params: {momentum: 0.9}}",
    "Lion": "optimizer: {type: Lion}",
    "Adagrad": "optimizer: {type: Adagrad}",
    "Lamb": "optimizer: {type: Lamb}",
    "cpu_torch_adam": "cpu_torch_adam: true",
    "fp16": LOW,
    "loss_scale": "precision: fp16\nloss_scale: 128",
    "loss_scale_window": f"{LOW}\nloss_scale_window: 2",
    "hysteresis 1": f"{HIGH}, hysteresis: 1}}",
    "hysteresis 2": f"{HIGH}}}",
    "hysteresis 4": f"{HIGH}}}\nhysteresis: 4",
    "min_scale": f"{HIGH}, hysteresis: 1}}\nmin_scale: {2**29}",
    "tested only": "optimizer: {type: Lion}\nzero_stage: 1\nzero_allow_untested_optimizer: false",
    "untested too": "optimizer: {type: Lion}\nzero_stage: 1\nzero_allow_untested_optimizer: true",
}
ZERO = "precision: bf16\nzero_stage: 1\nzero_reduce_scatter: false"
BY_TWO = {"base": "", "prescale": "prescale_gradients: true", "predivide": "gradient_predivide_factor: 4.0",
          "bf16": "precision: bf16", "bf16, fp32 sums": "precision: bf16\nfp32_allreduce: true", "bf16, ZeRO-1": ZERO,
          "bf16, ZeRO-1, fp32 sums": f"{ZERO}\nfp32_allreduce: true"}  # fmt: skip
ENGINES = ("plain", "pipeline")


@pytest.fixture(scope="module")
def alone() -> dict[str, Seen]:
    found: dict[str, Seen] = run_ranks(observe, 1, ALONE)[0]
    return found


@pytest.fixture(scope="module")
def by_two() -> dict[str, Seen]:
    first, second = run_ranks(observe, 2, BY_TWO)
    assert {name: seen.moved for name, seen in first.items()} == {name: seen.moved for name, seen in second.items()}
    found: dict[str, Seen] = first
    return found


on_both = pytest.mark.parametrize("engine", ENGINES)


def differing(alone: dict[str, Seen], name: str, engine: str) -> dict[str, Any]:
    """Return the options of the first parameter group that the setting changes; the update must differ too."""
    base, seen = alone[f"base, {engine}"], alone[f"{name}, {engine}"]
    assert not seen.error
    assert seen.moved != base.moved
    return {key: value for key, value in seen.groups[0].items() if value != base.groups[0][key]}


@pytest.mark.shows("weight-decay")
@on_both
def test_weight_decay_changes_matrices_but_not_biases(alone: dict[str, Seen], engine: str) -> None:
    assert differing(alone, "weight_decay", engine) == {"weight_decay": 0.3}
    assert [group["weight_decay"] for group in alone[f"base, {engine}"].groups] == [0.01, 0.0]
    assert [group["weight_decay"] for group in alone[f"weight_decay, {engine}"].groups] == [0.3, 0.0]


@pytest.mark.shows("adam-beta1", "adam-beta2", "adam-eps")
@on_both
def test_adam_settings(alone: dict[str, Seen], engine: str) -> None:
    assert differing(alone, "adam_beta1", engine) == {"betas": (0.8, 0.999)}
    assert differing(alone, "adam_beta2", engine) == {"betas": (0.9, 0.9)}
    assert differing(alone, "adam_eps", engine) == {"eps": 1e-2}


@pytest.mark.shows("lr", "optimizer")
@on_both
def test_the_section_equals_the_top_level_keys(alone: dict[str, Seen], engine: str) -> None:
    assert set(differing(alone, "lr", engine)) == {"lr"}
    changed = differing(alone, "in params", engine)
    assert {name: changed[name] for name in ("betas", "eps", "weight_decay")} == {
        "betas": (0.8, 0.9), "eps": 1e-2, "weight_decay": 0.3,
    }  # fmt: skip
    assert alone[f"in params, {engine}"].rates == alone[f"lr, {engine}"].rates


@pytest.mark.shows("optimizer", "cpu_torch_adam")
@on_both
@pytest.mark.parametrize(
    ("name", "kind", "state"),
    [("base", "AdamW", ("exp_avg", "exp_avg_sq", "step")), ("SGD", "SGD", ()),
     ("SGD with momentum", "SGD", ("momentum_buffer",)), ("Lion", "Lion", ("momentum",)),
     ("Adagrad", "Adagrad", ("step", "sum")), ("Lamb", "Lamb", ("mean", "squares", "step")),
     ("cpu_torch_adam", "AdamW", ("exp_avg", "exp_avg_sq", "step"))],
)  # fmt: skip
def test_the_optimizer_runs(alone: dict[str, Seen], name: str, kind: str, state: tuple[str, ...], engine: str) -> None:
    seen = alone[f"{name}, {engine}"]
    assert (seen.kind, seen.state, seen.error) == (kind, state, "")
    assert all(distance > 0 for distance in seen.moved)


def cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


def rise(step: int) -> float:
    """DeepSpeed's schedules start one update before the first one, with a learning rate of 0."""
    return 0.01 * max(step - 1, 0)


#: Rate of update n, the first is 0.
RATES = {
    "base": lambda n: 0.01 * (1 - n / 20),
    "lr": lambda n: 0.002 * (1 - n / 20),
    "lr_decay_iters": lambda n: 0.01 * max(1 - n / 4, 0),
    "min_lr": lambda n: max(0.01 * (1 - n / 4), 0.004),
    "warmup": lambda n: 0.01 * n / 5,
    "constant": lambda n: 0.01,
    "cosine": lambda n: 0.01 * cosine(n / 8),
    "exponential": lambda n: 0.01 * math.exp(-0.693 * n / 8),
    "WarmupLR": lambda n: min(rise(n) / 4, 0.01),
    "WarmupLR, log": lambda n: min(0.01 * math.log(max(n, 1)) / math.log(4), 0.01),
    "WarmupDecayLR": lambda n: rise(n) / 2 if n < 3 else 0.01 * (6 - (n - 1)) / 4,
    "WarmupCosineLR": lambda n: rise(n) / 2 if n < 3 else 0.01 * (1e-4 + (1 - 1e-4) * cosine((n - 2) / 4)),
    "OneCycle": lambda n: [0.001, 0.002, 0.003, 0.002, 0.001, 0.001][n],
    "LRRangeTest": lambda n: 0.001 * (1 + n / 2),
}


@pytest.mark.shows("lr", "lr-decay-style", "lr-decay-iters", "min-lr", "warmup", "scheduler")
@on_both
@pytest.mark.parametrize("name", RATES)
def test_the_learning_rate_follows_its_formula(alone: dict[str, Seen], name: str, engine: str) -> None:
    seen = alone[f"{name}, {engine}"]
    assert seen.rates == pytest.approx([RATES[name](n) for n in range(STEPS)])
    assert [distance > 0 for distance in seen.moved] == [rate > 0 for rate in seen.rates]


@pytest.mark.shows("gradient_clipping")
@on_both
def test_a_large_gradient_is_clipped(alone: dict[str, Seen], engine: str) -> None:
    assert min(alone[f"SGD, {engine}"].moved) > 0.1 * 0.1
    assert alone[f"clipped, {engine}"].moved == pytest.approx([0.1 * 0.01] * STEPS, rel=1e-2)


@pytest.mark.shows("fp16", "loss-scale", "loss-scale-window")
@on_both
def test_the_loss_scale(alone: dict[str, Seen], engine: str) -> None:
    assert alone[f"base, {engine}"].scales == (1,) * STEPS
    assert alone[f"fp16, {engine}"].scales == (16,) * STEPS
    assert alone[f"loss_scale, {engine}"].scales == (128,) * STEPS
    assert alone[f"loss_scale_window, {engine}"].scales == (16, 16, 16, 32, 32, 64)
    for name in ("fp16", "loss_scale", "loss_scale_window"):
        assert alone[f"{name}, {engine}"].moved == pytest.approx(alone[f"base, {engine}"].moved, rel=5e-2)


@pytest.mark.shows("hysteresis")
@on_both
def test_hysteresis_delays_the_halving_of_the_loss_scale(alone: dict[str, Seen], engine: str) -> None:
    for patience in (1, 2, 4):
        seen = alone[f"hysteresis {patience}, {engine}"]
        halvings = [max(0, step - patience + 1) for step in range(STEPS)]
        assert seen.scales == tuple(2.0 ** (30 - halved) for halved in halvings)
        assert seen.moved == (0,) * STEPS


@pytest.mark.shows("min-scale")
@on_both
def test_the_loss_scale_has_a_minimum(alone: dict[str, Seen], engine: str) -> None:
    assert alone[f"hysteresis 1, {engine}"].scales[:3] == (2**30, 2**29, 2**28)
    lowest = alone[f"min_scale, {engine}"]
    assert lowest.scales == (2**30, 2**29)
    assert "smallest" in lowest.error or "minimum" in lowest.error


@pytest.mark.shows("zero_allow_untested_optimizer")
@on_both
def test_zero_with_an_optimizer_that_deepspeed_does_not_have(alone: dict[str, Seen], engine: str) -> None:
    assert "untested ZeRO Optimizer" in alone[f"tested only, {engine}"].error
    assert alone[f"untested too, {engine}"].kind == "Lion"
    assert alone[f"untested too, {engine}"].moved == pytest.approx(alone[f"Lion, {engine}"].moved, rel=1e-5)


@pytest.mark.shows("fp32-allreduce", "fp32_allreduce")
@on_both
@pytest.mark.parametrize("name", ["bf16", "bf16, ZeRO-1"])
def test_gradients_are_reduced_in_fp32(by_two: dict[str, Seen], name: str, engine: str) -> None:
    rounded, exact = by_two[f"{name}, {engine}"].sent, by_two[f"{name}, fp32 sums, {engine}"].sent
    assert {kind for kind, _ in rounded} == {torch.bfloat16}
    assert {kind for kind, _ in exact} == {torch.float32}
    assert len(rounded) == len(exact) >= STEPS


@pytest.mark.shows("prescale_gradients", "gradient_predivide_factor")
@on_both
def test_gradients_are_divided_before_they_are_summed(by_two: dict[str, Seen], engine: str) -> None:
    base = by_two[f"base, {engine}"]
    for name, divisor in (("prescale", 2), ("predivide", 4)):
        seen = by_two[f"{name}, {engine}"]
        assert [length for _, length in seen.sent] == pytest.approx([length / divisor for _, length in base.sent])
        assert seen.moved == pytest.approx(base.moved, rel=1e-4)
