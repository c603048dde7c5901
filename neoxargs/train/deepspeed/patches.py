"""Faults of DeepSpeed and their corrections, which are applied from outside: one row per fault.

All were observed in DeepSpeed 0.19. A row has the effect of the fault on a run, a canary that detects it in the
installed version (canaries.py), and the correction. A test calls every canary. A row that names a version that has
mended the fault can be removed once the range in pyproject.toml begins with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neoxargs.train.deepspeed import canaries, half_precision, interface
from neoxargs.train.parallel import gradient_norm
from neoxargs.train.process.mesh import Mesh


class Patch(NamedTuple):
    """A bug in DeepSpeed and its fix."""

    name: str
    why: str
    """The bug, and its effect on a run."""
    is_needed: Callable[[], bool]
    """The canary: returns whether the installed DeepSpeed still has the bug."""
    apply: Callable[..., Any]
    mended_in: str = ""
    """The version of DeepSpeed that no longer has the bug; its correction does no harm there."""


def install(engine: interface.PlainEngine | interface.PipelineEngine, mesh: Mesh) -> None:
    """Correct a DeepSpeed engine without ZeRO. Call before its first step."""
    # The engine calls this method only in fp32; in half precision the optimizer clips.
    interface.replace(engine, clip_fp32_gradients=lambda: clip(engine, mesh))
    if isinstance(engine.optimizer, interface.Fp16):
        # DeepSpeed's internal name of `hysteresis` is `delayed_shift`.
        arguments = engine.dynamic_loss_scale_args()
        half_precision.Hysteresis(engine.optimizer, arguments["delayed_shift"], arguments["consecutive_hysteresis"])
        half_precision.replace_norm(engine, half_precision.LossScale(engine), mesh)
        # The step was taken in the optimizer's constructor, so only its effects can be undone.
        half_precision.forget_first_step(engine.optimizer)


def clip(engine: interface.Engine, mesh: Mesh) -> None:
    """Clip the gradients and set `engine._global_grad_norm`. Replaces `engine.clip_fp32_gradients`."""
    weights = list(engine.module.parameters())
    norm = gradient_norm.gradient_norm(
        [(weight, weight.grad) for weight in weights], mesh, interface.averages_gradients(engine)
    )
    engine._global_grad_norm = norm
    gradient_norm.clip_(
        [weight.grad for weight in weights if weight.grad is not None], norm, engine.gradient_clipping()
    )


@cache
def await_every_gather() -> None:
    """Gather the weights of ZeRO-3 one at a time, and wait for each. Needed on gloo only; imports deepspeed."""
    from deepspeed.runtime.zero.partition_parameters import Init

    gather_all = Init._allgather_params_coalesced

    def gather_each(init: Init, weights: Sequence[nn.Parameter], hierarchy: int = 0, quantize: bool = False) -> None:
        for weight in weights:
            gather_all(init, [weight], hierarchy, quantize)

    Init._allgather_params_coalesced = gather_each


@cache
def no_streams_on_cpu() -> None:
    """Let DeepSpeed's activation checkpointing run on a CPU."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    # DeepSpeed calls `Stream(device=...)` as of a class, hence a property that returns a function.
    CPU_Accelerator.Stream = property(lambda _: lambda device=None: None)


@cache
def reduce_in_lists_on_cpu() -> None:
    """Let ZeRO-1 and 2 reduce gradients on a CPU with `contiguous_gradients: false`."""
    from deepspeed.runtime.zero import stage_1_and_2

    def by_type(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        types = dict.fromkeys(tensor.dtype for tensor in tensors)
        return [[tensor for tensor in tensors if tensor.dtype is dtype] for dtype in types]

    stage_1_and_2.split_half_float_double = by_type


def start_timers_once(engine: interface.PipelineEngine) -> None:
    """Let the pipeline engine time a step: skip timers that are running instead of starting them again."""

    def start(names: Sequence[str]) -> None:
        for name in names:
            if not engine.timers(name).started_:
                engine.timers(name).start()

    interface.replace(engine, _start_timers=start)


def print_profile(engine: interface.PipelineEngine) -> None:
    """Print the flops profile of the pipeline engine, for the pipeline stage of rank 0."""
    train_batch, options = engine.train_batch, engine._config.flops_profiler_config

    def train_batch_and_print(batches: Any) -> Any:
        # Asked before the step, which increments `global_steps`.
        profiled = engine.global_steps == engine.flops_profiler_profile_step() and engine.global_rank == 0
        loss = train_batch(batches)
        if profiled:
            profiler = vars(engine)["flops_profiler"]  # set in the step
            arguments = options.module_depth, options.top_modules, options.detailed, options.output_file
            with interface.replaced(engine, wall_clock_breakdown=lambda: False):  # whose timers the step has reset
                profiler.print_model_profile(engine.global_steps, *arguments)
            # As the plain engine does after it has printed; it removes the profiler's attributes from the modules.
            profiler.end_profile()
        return loss

    interface.replace(engine, train_batch=train_batch_and_print)


def forget_times(engine: interface.PipelineEngine) -> None:
    """Let the pipeline engine forget how long each step took, which it would keep to print it."""
    train_batch = engine.train_batch

    def train_batch_and_forget(batches: Any) -> Any:
        loss = train_batch(batches)
        engine.timers("train_batch").reset()
        return loss

    interface.replace(engine, train_batch=train_batch_and_forget)


@cache
def print_no_second_loss() -> None:
    """Leave out the pipeline engine's line with loss and speed, which our own log lines have. Imports deepspeed."""
    from deepspeed.runtime.pipe import engine

    def print_others(*words: Any, **options: Any) -> None:
        if not str(words[:1]).startswith("('steps: "):
            print(*words, **options)

    vars(engine)["print"] = print_others


def print_state(engine: interface.Engine) -> None:
    """Print the configuration that DeepSpeed has read, and the attributes of its engine."""
    from deepspeed.runtime.engine import print_configuration

    # Both functions below log at level INFO, and setup.init_distributed sets this logger to WARNING.
    logger = logging.getLogger("DeepSpeed")
    before = logger.level
    logger.setLevel(logging.INFO)
    engine._config.print("DeepSpeedEngine configuration")
    print_configuration(engine, "DeepSpeedEngine")
    logger.setLevel(before)


def monitor_loss(engine: interface.Engine, loss: float, samples: int) -> None:
    """Write the loss of a step to DeepSpeed's monitors. samples: how many the run had seen after it."""
    if engine.monitor.enabled and engine.global_rank == 0:
        engine.monitor.write_events([("Train/Samples/train_loss", loss, samples)])


def restore_linear() -> None:
    """Undo what an engine of ZeRO-3 has done to torch's `linear`; the next engine of ZeRO-3 does it again."""
    from deepspeed.runtime.zero.partition_parameters import InsertPostInitMethodToModuleSubClasses as Init

    nn.functional.linear = getattr(Init, "linear_bk", nn.functional.linear)


@cache
def keep_adagrad() -> None:
    """Let ZeRO keep torch's Adagrad, with its parameter groups and learning rate schedule. Imports deepspeed."""
    from deepspeed.runtime.zero import stage3, stage_1_and_2

    for zero in (stage_1_and_2.DeepSpeedZeroOptimizer, stage3.DeepSpeedZeroOptimizer_Stage3):
        zero.initialize_optimizer_states = _keeping_adagrad(zero.initialize_optimizer_states)


def _keeping_adagrad(initialize: Callable[[Any], None]) -> Callable[[Any], None]:
    def initialize_and_keep(zero: Any) -> None:
        own = zero.optimizer
        initialize(zero)
        if zero.optimizer is not own:
            own.state, zero.optimizer = zero.optimizer.state, own

    return initialize_and_keep


def sum_in_accumulation_type(optimizer: Any) -> None:
    """Let ZeRO-2 reduce and accumulate gradients in `grad_accum_dtype`; other optimizers are not changed."""
    if not isinstance(optimizer, interface.Zero12) or not optimizer.partition_gradients:
        return
    dtype, gradients = optimizer.gradient_accumulation_dtype, optimizer.get_all_grad_tensors

    def in_their_type(weights: Any, dtype: torch.dtype) -> list[Tensor]:
        return [gradient.to(dtype) for gradient in gradients(weights, dtype)]

    interface.replace(optimizer, get_all_grad_tensors=in_their_type)
    # In host memory, DeepSpeed adds gradients in the precision of the model.
    if optimizer.cpu_offload or optimizer.communication_data_type is not dtype or optimizer.dtype is dtype:
        return

    def gradient(weight: nn.Parameter) -> Tensor | None:
        if weight.grad is not None:
            weight.grad.data = weight.grad.data.to(dtype)
        return weight.grad

    # The last two allocate the buffers of gradients, in the precision of the model.
    interface.replace(
        optimizer,
        get_gradient_for_reduction=gradient,
        setup_buckets=partial(_with_dtype, optimizer, dtype, optimizer.setup_buckets),
        copy_grads_in_partition=partial(_with_dtype, optimizer, dtype, optimizer.copy_grads_in_partition),
    )


def _with_dtype(optimizer: interface.Zero12, dtype: torch.dtype, method: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of ZeRO's optimizer that reads the precision of the model there."""
    with interface.replaced(optimizer, dtype=dtype):
        return method(*arguments)


def link_reordered(optimizer: Any) -> None:
    """Let ZeRO-1 and 2 know where `round_robin_gradients` puts each weight; other optimizers are not changed."""
    if not isinstance(optimizer, interface.Zero12) or not optimizer.round_robin_gradients:
        return
    link = optimizer._link_all_hp_params

    def link_in_their_order() -> None:
        with interface.replaced(optimizer, bit16_groups=optimizer.round_robin_bit16_groups):
            link()

    interface.replace(optimizer, _link_all_hp_params=link_in_their_order)
    optimizer._link_all_hp_params()
    optimizer._param_slice_mappings = optimizer._create_param_mapping()


PATCHES = (
    Patch(
        "gradient-norm",
        "Weights that are not divided by tensor parallelism enter the gradient norm only on model parallel rank 0. The "
        "gradient norm therefore omits the biases and layer norms of all pipeline stages except the first, and counts "
        "tied embeddings twice. A run with pipeline stages is clipped differently from one without.",
        canaries.norm_counts_by_model_parallel_rank,
        clip,
    ),
    Patch(
        "fp16-loss-unscaled",
        "Without ZeRO, gradients are divided by the loss scale, but the loss is not multiplied by it: small gradients "
        "underflow, overflows are not detected, and gradients are never clipped.",
        canaries.only_zero_scales_the_loss,
        half_precision.LossScale,
    ),
    Patch(
        "fp16-hysteresis-ignored",
        "Without ZeRO, every overflow halves the loss scale; `hysteresis` is ignored.",
        canaries.first_overflow_halves_the_scale,
        half_precision.Hysteresis,
    ),
    Patch(
        "zero-unscales-by-next-scale",
        "ZeRO-1 to 3 double the dynamic loss scale of fp16 before they divide the gradients by it. Whenever the scale "
        "grows, gradients that are not clipped are half of what they should be, and ZeRO-3 reports half of their norm.",
        canaries.zero_unscales_by_the_next_scale,
        half_precision.grow_scale_after_step,
    ),
    Patch(
        "half-precision-first-step",
        "The optimizer takes a step on zero gradients to allocate its state. This decays the weights once at the full "
        "learning rate, and Adam's bias correction stays one step ahead for the rest of the run.",
        canaries.steps_to_allocate,
        half_precision.forget_first_step,
    ),
    Patch(
        "bf16-step-waits",
        "The optimizer that accumulates bf16 gradients in fp32 reads their norm on the host in every step, which "
        "leaves the GPU without work, and an assertion stops the run if the norm is 0 or NaN.",
        canaries.bf16_step_asserts_a_norm,
        half_precision.step_without_waiting,
        mended_in="0.19.8",
    ),
    Patch(
        "zero2-ignores-accumulation-type",
        "ZeRO-2 reduces and adds the gradients of micro batches in the precision of the model, and casts only their "
        "sum to `grad_accum_dtype`. In bf16, small gradients are lost.",
        canaries.zero2_sums_in_the_models_type,
        sum_in_accumulation_type,
    ),
    Patch(
        "round-robin-links-other-weights",
        "With `round_robin_gradients`, ZeRO-1 and 2 reorder weights in their partitions, but record where each weight "
        "lies as if they did not: norms and states per weight are those of others, as are universal checkpoints.",
        canaries.links_weights_in_declared_order,
        link_reordered,
    ),
    Patch(
        "zero3-keeps-linear",
        "An engine of ZeRO-3 replaces torch's `linear` in the whole process, also for later engines of other stages. "
        "Layers that torch compiles with the replacement had gradients of zero on a GPU (torch 2.11).",
        canaries.zero3_replaces_linear_for_good,
        restore_linear,
    ),
    Patch(
        "zero-replaces-adagrad",
        "ZeRO replaces torch's Adagrad by one with a single parameter group, whose learning rate no schedule changes. "
        "With several groups, ZeRO-1 and 2 end in an IndexError.",
        canaries.zero_builds_another_adagrad,
        keep_adagrad,
    ),
    Patch(
        "zero3-gathers-not-awaited",
        "Weights are gathered in several asynchronous transfers, but only the last one is awaited. NCCL completes them "
        "in order; gloo does not, so a layer may compute with weights that have not arrived.",
        canaries.awaits_only_the_last_gather,
        await_every_gather,
        mended_in="0.19.8",
    ),
    Patch(
        "zero-reduces-no-lists-on-cpu",
        "On CPUs, ZeRO-1 and 2 do not reduce gradients with `contiguous_gradients: false`: DeepSpeed compares the "
        "types of tensors with names that only GPUs have. Each rank updates its partition by its own gradients.",
        canaries.no_type_on_cpu_is_known,
        reduce_in_lists_on_cpu,
        mended_in="0.19.8",
    ),
    Patch(
        "checkpointing-stream-on-cpu",
        "Activation checkpointing creates a stream that it never uses; the CPU accelerator has no streams, so this "
        "fails.",
        canaries.cpu_has_no_stream,
        no_streams_on_cpu,
    ),
    Patch(
        "pipeline-timers-started-twice",
        "On all stages but the last, the pipeline engine starts the timers of the backward pass and then calls a "
        "function that starts them again, which fails.",
        canaries.pipeline_starts_timers_itself,
        start_timers_once,
    ),
    Patch(
        "pipeline-profile-not-printed",
        "The pipeline engine counts operations for the flops profiler but never prints the result.",
        canaries.pipeline_prints_no_profile,
        print_profile,
    ),
    Patch(
        "pipeline-keeps-times",
        "The pipeline engine stores the time of every step (on a GPU, as two CUDA events) until it prints the times. "
        "Without `steps_per_print`, it never prints them, so its memory use grows throughout the run.",
        canaries.pipeline_keeps_times,
        forget_times,
    ),
    Patch(
        "pipeline-prints-a-second-loss",
        "With `steps_per_print`, the pipeline engine prints the loss of that one step, while a line of train.py has "
        "the mean since the line before: two numbers for one step.",
        canaries.pipeline_prints_a_loss,
        print_no_second_loss,
    ),
    Patch(
        "plain-engine-monitors-no-loss",
        "Only the pipeline engine writes the loss of a step to the monitors; the plain engine does not.",
        canaries.plain_engine_monitors_no_loss,
        monitor_loss,
    ),
)
