"""The length of the learning rate decay, DeepSpeed's schedules, and the values of `auto`."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.base.problems import Problems
from neoxargs.config.config import Config
from tests.support.configure import configure


@pytest.mark.parametrize(
    ("text", "iterations"),
    [
        ("", 100),
        ("lr_decay_iters: 70", 70),
        ("lr_decay_fraction: 0.5", 50),
        ("{lr_decay_iters: 50, lr_decay_fraction: 0.5}", 50),
    ],
)
def test_the_learning_rate_decays_for(text: str, iterations: int) -> None:
    assert configure(text).schedule.lr_decay_iters == iterations


def schedule(config: Config) -> tuple[Any, ...]:
    """The start, the end and the lengths of the warm-up and of the schedule."""
    names = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")
    return tuple(config.get(f"scheduler.params.{name}") for name in names)


def test_a_one_bit_optimizer_has_its_own_schedule() -> None:
    config = configure("{onebitadam: true, lr: 0.01, warmup: 0.05, lr_decay_iters: 90}")
    assert config.scheduler.type == "WarmupDecayLR"
    assert schedule(config) == (0, 0.01, 5, 90)


def test_lr_decay_style_replaces_the_schedule_of_a_one_bit_optimizer() -> None:
    assert configure("{onebitadam: true, lr_decay_style: cosine}").scheduler.type is None


def test_other_optimizers_have_no_schedule() -> None:
    assert configure("lr_decay_style: cosine").scheduler.type is None


def test_auto_in_a_scheduler_follows_the_run() -> None:
    params = "{warmup_min_lr: auto, warmup_max_lr: auto, warmup_num_steps: auto, total_num_steps: auto}"
    config = configure(f"{{lr: 0.01, warmup: 0.1, scheduler: {{type: WarmupDecayLR, params: {params}}}}}")
    assert schedule(config) == (0, 0.01, 10, 100)


def test_an_explicit_scheduler_keeps_deepspeeds_warmup() -> None:
    assert schedule(configure("scheduler: {type: WarmupLR}")) == (0, 0.001, 1000, None)


def test_an_explicit_warmup_is_that_of_the_scheduler() -> None:
    text = "{warmup: 0.2, lr_decay_iters: 50, scheduler: {type: WarmupDecayLR}}"
    assert schedule(configure(text))[2:] == (20, 50)
    same = "{warmup: 0.2, scheduler: {type: WarmupLR, params: {warmup_num_steps: 20}}}"
    assert schedule(configure(same))[2] == 20


def test_auto_sizes_of_zero_follow_the_hidden_size() -> None:
    sizes = "reduce_bucket_size: auto, stage3_prefetch_bucket_size: auto, stage3_param_persistence_threshold: auto"
    config = configure(f"zero_optimization: {{stage: 3, {sizes}}}")
    zero = config.zero_optimization
    assert (zero.reduce_bucket_size, config.zero_shortcuts.zero_reduce_bucket_size) == (64 * 64, 64 * 64)
    assert (zero.stage3_prefetch_bucket_size, zero.stage3_param_persistence_threshold) == (3686, 640)
    assert configure("zero_optimization: {stage: 3}").zero_optimization.stage3_prefetch_bucket_size == 50_000_000


def test_auto_in_the_optimizer_follows_the_top_level() -> None:
    params = "{lr: auto, betas: auto, eps: auto, weight_decay: auto}"
    config = configure(
        f"{{lr: 0.01, adam_beta1: 0.8, weight_decay: 0.3, optimizer: {{type: AdamW, params: {params}}}}}"
    )
    found = config.optimizer_params
    assert (found.lr, found.betas, found.eps, found.weight_decay) == (0.01, [0.8, 0.999], 1e-8, 0.3)


def test_iterations_of_epochs() -> None:
    for samples, iterations in ((160, 20), (167, 20), (168, 21)):
        config = configure("train_epochs: 2", without="train_iters", samples=samples)
        assert config.training.train_iters == iterations  # of 16 samples
        assert config.schedule.lr_decay_iters == iterations
    for samples in (0, 7):
        with pytest.raises(Problems):
            configure("train_epochs: 2", without="train_iters", samples=samples)
    with pytest.raises(Problems):
        configure("train_epochs: 2", samples=160)
