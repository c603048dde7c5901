"""The learning rate of DeepSpeed's own schedules (`scheduler.type`) as a function of the iteration.

The formulas are those of deepspeed/runtime/lr_schedules.py (0.19), which DeepSpeed advances after each update.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from neoxargs.config.config import Config

#: Returns the value of a key of `scheduler.params`.
Options = Callable[[str], Any]


def curve(config: Config) -> Callable[[int], float]:
    """Return the learning rate of an iteration, counted from 0, of the first group of weights."""
    assert config.scheduler.type
    rate, lr = _RATES[config.scheduler.type], config.get("lr")
    return lambda iteration: rate(lambda key: config.get(f"scheduler.params.{key}"), lr, iteration)


def _warm_up(options: Options, iteration: int) -> float | None:
    """Return how much of the warm-up is done, from 0 to 1; None after it."""
    updates, steps = iteration - 1, max(2, options("warmup_num_steps"))
    if updates >= steps:
        return None
    if updates < 0:
        return 0.0
    return math.log(updates + 1) / math.log(steps) if options("warmup_type") == "log" else updates / steps


def _warmup(options: Options, lr: float, iteration: int) -> float:
    low, high = options("warmup_min_lr"), lr if options("warmup_max_lr") is None else options("warmup_max_lr")
    done = _warm_up(options, iteration)
    return high if done is None else float(low + (high - low) * done)


def _warmup_decay(options: Options, lr: float, iteration: int) -> float:
    if _warm_up(options, iteration) is not None:
        return _warmup(options, lr, iteration)
    steps, total = max(2, options("warmup_num_steps")), options("total_num_steps") or 0
    low, high = options("warmup_min_lr"), _warmup(options, lr, steps + 1)
    return float(low + (high - low) * max(0.0, (total - iteration + 1) / max(1, total - steps)))


def _warmup_cosine(options: Options, lr: float, iteration: int) -> float:
    if iteration == 0:
        return 0.0
    done = _warm_up(options, iteration)
    if done is not None:
        return float(lr * (options("warmup_min_ratio") + done * (1 - options("warmup_min_ratio"))))
    steps, total = max(2, options("warmup_num_steps")), options("total_num_steps") or 0
    progress = min(1.0, (iteration - steps) / max(1, total - steps))
    share = (1 + math.cos(math.pi * progress)) / 2
    return float(lr * max(0.0, options("cos_min_ratio") + (1 - options("cos_min_ratio")) * share))


def _one_cycle(options: Options, lr: float, iteration: int) -> float:
    low, high = options("cycle_min_lr") or 0.0, options("cycle_max_lr") or 0.0
    first = options("cycle_first_step_size")
    second = first if options("cycle_second_step_size") is None else options("cycle_second_step_size")
    if iteration - 1 >= first + second:
        if not options("decay_step_size") or not options("decay_lr_rate"):
            return float(low)
        return float(low / (1 + options("decay_lr_rate") * (iteration - first - second) / options("decay_step_size")))
    stairs = options("cycle_first_stair_count"), options("cycle_second_stair_count")
    stairs_down = stairs[0] if stairs[1] is None else stairs[1]
    position = iteration % (first + second)
    rising = position <= first
    done, count = (position / first, stairs[0]) if rising else ((first + second - position) / second, stairs_down)
    return float(low + (high - low) * (math.floor(done * count) / count if count else done))


def _range_test(options: Options, lr: float, iteration: int) -> float:
    begin = options("lr_range_test_min_lr")
    low = begin[0] if isinstance(begin, list) else begin
    increments = iteration / options("lr_range_test_step_size")
    if options("lr_range_test_staircase"):
        increments = math.floor(increments)
    return float(low * (1 + options("lr_range_test_step_rate") * increments))


#: Type -> the rate of an iteration.
_RATES: dict[str, Callable[[Options, float, int], float]] = {
    "WarmupLR": _warmup,
    "WarmupDecayLR": _warmup_decay,
    "WarmupCosineLR": _warmup_cosine,
    "OneCycle": _one_cycle,
    "LRRangeTest": _range_test,
}
