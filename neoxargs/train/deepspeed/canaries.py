"""Canaries: each returns whether the installed DeepSpeed still has the bug that one row of patches.py fixes.

None needs a process group. If a fault cannot be reproduced in one process, its canary searches DeepSpeed's source for
the faulty line.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import torch

from neoxargs.train.deepspeed.interface import replaced


def _source(name: str) -> str:
    """Return the source of an object of DeepSpeed, `module:object`."""
    return inspect.getsource(resolve_name(f"deepspeed.{name}"))


def _has_line(name: str, line: str) -> Callable[[], bool]:
    """Return the canary that finds the faulty line in this source."""
    return lambda: line in _source(name)


norm_counts_by_model_parallel_rank = _has_line(
    "runtime.utils:clip_grad_norm_", "if (mpu.get_model_parallel_rank() == 0) or is_model_parallel_parameter(p):"
)


def only_zero_scales_the_loss() -> bool:
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

    source = _source("runtime.engine:DeepSpeedEngine")
    check = re.search(r"if isinstance\(self.optimizer, (\w+)\):\s+loss =", source)
    only_zero = check is not None and check[1] == "ZeROOptimizer"
    return only_zero and not hasattr(FP16_UnfusedOptimizer, "scale_if_loss")


def first_overflow_halves_the_scale() -> bool:
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

    # A scaler that respects `hysteresis` (here `delayed_shift` 2) would keep 8 after the first overflow.
    state = SimpleNamespace(
        dynamic_loss_scale=True, cur_scale=8.0, scale_factor=2.0, min_loss_scale=1.0, cur_iter=0, last_overflow_iter=-1,
        scale_window=10, delayed_shift=2, cur_hysteresis=2,
    )  # fmt: skip
    FP16_UnfusedOptimizer._update_scale(SimpleNamespace(loss_scale_config=state, verbose=False), True)
    return bool(state.cur_scale == 4.0)


def zero_unscales_by_the_next_scale() -> bool:
    step = _source("runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.step")
    updates_first = step.index("self._update_scale(") < step.index("self.unscale_and_clip_grads(")
    divide = _source("runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.unscale_and_clip_grads")
    return updates_first and "combined_scale = self.loss_scale" in divide


def steps_to_allocate() -> bool:
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

    steps: list[Any] = []
    optimizer = SimpleNamespace(step=lambda: steps.append(None))
    weights = SimpleNamespace(fp16_groups=[], fp32_groups=[], optimizer=optimizer)
    FP16_UnfusedOptimizer.initialize_optimizer_states(weights)
    return bool(steps)


bf16_step_asserts_a_norm = _has_line("runtime.bf16_optimizer:BF16_Optimizer.step", "assert all_groups_norm > 0.")


def zero2_sums_in_the_models_type() -> bool:
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    weight = torch.zeros(1, dtype=torch.bfloat16)
    zero = SimpleNamespace(get_param_gradient_attribute=lambda weight: weight)
    [gradient] = DeepSpeedZeroOptimizer.get_all_grad_tensors(zero, [weight], torch.float32)
    return gradient.dtype is not torch.float32


links_weights_in_declared_order = _has_line(
    "runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer._link_all_hp_params", "lp_param_list=self.bit16_groups[i]"
)


def zero3_replaces_linear_for_good() -> bool:
    source = _source("runtime.zero.partition_parameters:InsertPostInitMethodToModuleSubClasses")
    values = re.findall(r"functional\.linear = (\S+)", source)
    return "zero3_linear_wrap" in values and not any("linear_bk" in value for value in values)


zero_builds_another_adagrad = _has_line(
    "runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer", "self.optimizer = torch.optim.Adagrad("
)


def awaits_only_the_last_gather() -> bool:
    source = _source("runtime.zero.partition_parameters:Init._allgather_params_coalesced")
    # A corrected version would wait for the handles in a loop.
    return "launch_handles[-1].wait()" in source and "for h in launch_handles" not in source


def no_type_on_cpu_is_known() -> bool:
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    from deepspeed.runtime.zero import stage_1_and_2

    # On a GPU, the name that the function builds is right.
    with replaced(stage_1_and_2, get_accelerator=CPU_Accelerator):
        return not stage_1_and_2.split_half_float_double([torch.zeros(1)])


def cpu_has_no_stream() -> bool:
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    return CPU_Accelerator().Stream is None


def pipeline_starts_timers_itself() -> bool:
    start = _source("runtime.engine:DeepSpeedEngine._start_timers")
    # A corrected `_start_timers` would ask each timer whether it has started, as patches.start_timers_once does.
    starts = "timers(BACKWARD_MICRO_TIMER).start()" in _source("runtime.pipe.engine:PipelineEngine")
    return starts and "started_" not in start


def pipeline_keeps_times() -> bool:
    from deepspeed.utils.timer import SynchronizedWallClockTimer

    timer = SynchronizedWallClockTimer.Timer("train_batch")
    for _ in range(2):
        timer.start()
        timer.stop()
    # Two: rank 0 and the other ranks reset the timer in different branches, both below the `if` searched for next.
    source = _source("runtime.pipe.engine:PipelineEngine.train_batch")
    resets = source.count("TRAIN_BATCH_TIMER).elapsed(reset=True)")
    printed = "if self.steps_per_print() is not None" in source
    return len(timer.event_timers) == 2 and resets == 2 and printed


def pipeline_prints_no_profile() -> bool:
    return "print_model_profile" not in _source("runtime.pipe.engine:PipelineEngine")


pipeline_prints_a_loss = _has_line(
    "runtime.pipe.engine:PipelineEngine.train_batch", "steps: {self.global_steps} loss: "
)


def plain_engine_monitors_no_loss() -> bool:
    return "Train/Samples/train_loss" not in _source("runtime.engine:DeepSpeedEngine")
