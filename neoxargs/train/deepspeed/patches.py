"""What DeepSpeed gets wrong, put right from outside: a row for each fault.

Each row says which versions have the fault, what it does to a run, how to tell that the installed version still has
it (canaries.py) and what puts it right. A test asks every canary: where one has fallen silent the row can go, and
what it applies with it. Other versions than those named have not been looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from torch import nn

from neoxargs.train.deepspeed import canaries, gradient_norm, half_precision
from neoxargs.train.process.mesh import Mesh


class Patch(NamedTuple):
    """A fault of DeepSpeed's and what puts it right."""

    name: str
    versions: str
    """In which the fault has been seen."""
    why: str
    """What it does to a run."""
    is_needed: Callable[[], bool]
    """The canary: has the installed DeepSpeed still got the fault?"""
    apply: Callable[..., Any]


def install(engine: Any, mesh: Mesh) -> None:
    """Correct a DeepSpeed engine without ZeRO that has taken no step yet."""
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

    engine.clip_fp32_gradients = lambda: gradient_norm.clip(engine, mesh)
    if isinstance(engine.optimizer, FP16_UnfusedOptimizer):
        arguments = engine.dynamic_loss_scale_args()
        half_precision.Hysteresis(engine.optimizer, arguments["delayed_shift"], arguments["consecutive_hysteresis"])
        half_precision.replace_norm(engine, half_precision.LossScale(engine), mesh)
        half_precision.forget_first_step(engine.optimizer)


@cache
def await_every_gather() -> None:
    """Gather the weights of ZeRO-3 one after another; to be called once deepspeed is imported, for gloo."""
    from deepspeed.runtime.zero.partition_parameters import Init

    at_once = Init._allgather_params_coalesced

    def each(init: Init, weights: Sequence[nn.Parameter], hierarchy: int = 0, quantize: bool = False) -> None:
        for weight in weights:
            at_once(init, [weight], hierarchy, quantize)

    Init._allgather_params_coalesced = each


@cache
def no_streams_on_cpu() -> None:
    """Let DeepSpeed's checkpoint function run on a CPU."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    CPU_Accelerator.Stream = property(lambda _: lambda device=None: None)


def start_timers_once(engine: Any) -> None:
    """Let the pipeline engine time a step: what runs already is not started again."""

    def start(names: Sequence[str]) -> None:
        for name in names:
            if not engine.timers(name).started_:
                engine.timers(name).start()

    engine._start_timers = start


def print_profile(engine: Any) -> None:
    """Print what the pipeline engine has counted: the main rank's stage."""
    train_batch, options = engine.train_batch, engine._config.flops_profiler_config

    def counted(batches: Any) -> Any:
        now = engine.global_steps == engine.flops_profiler_profile_step() and engine.global_rank == 0
        loss = train_batch(batches)
        if now:
            engine.flops_profiler.print_model_profile(
                engine.global_steps, options.module_depth, options.top_modules, options.detailed, options.output_file
            )
            engine.flops_profiler.end_profile()
        return loss

    engine.train_batch = counted


def monitor_loss(engine: Any, loss: float) -> None:
    """Give DeepSpeed's monitors the loss of a step."""
    if engine.monitor.enabled and engine.global_rank == 0:
        engine.monitor.write_events([("Train/Samples/train_loss", loss, engine.global_samples)])


PATCHES = (
    Patch(
        "gradient-norm",
        "0.19",
        "It takes 'not split by tensor parallelism' for 'repeated on every other rank': biases and norms of all "
        "pipeline stages but the first are left out, and tied embeddings count twice. A run with pipeline stages "
        "would be clipped otherwise than one without.",
        canaries.norm_counts_by_model_parallel_rank,
        gradient_norm.clip,
    ),
    Patch(
        "fp16-loss-unscaled",
        "0.19",
        "Without ZeRO gradients are divided by the loss scale, but the loss was never multiplied by it: small "
        "gradients vanish, overflows pass unseen, and clipping never clips.",
        canaries.only_zero_scales_the_loss,
        half_precision.LossScale,
    ),
    Patch(
        "fp16-hysteresis-ignored",
        "0.19",
        "Without ZeRO every overflow halves the loss scale, whatever `hysteresis` says.",
        canaries.first_overflow_halves_the_scale,
        half_precision.Hysteresis,
    ),
    Patch(
        "half-precision-first-step",
        "0.19",
        "To allocate its state the optimizer steps on zero gradients: that decays the weights once at the full "
        "learning rate, and Adam's bias corrections are one step ahead ever after.",
        canaries.steps_to_allocate,
        half_precision.forget_first_step,
    ),
    Patch(
        "zero3-gathers-not-awaited",
        "0.19",
        "Weights are gathered in many transfers of which only the last is waited for. NCCL does them in order; gloo "
        "does not, and hands out weights that have not arrived.",
        canaries.awaits_only_the_last_gather,
        await_every_gather,
    ),
    Patch(
        "checkpointing-stream-on-cpu",
        "0.19",
        "Activation checkpointing asks for a stream, which is never used and of which CPUs have none.",
        canaries.cpu_has_no_stream,
        no_streams_on_cpu,
    ),
    Patch(
        "pipeline-timers-started-twice",
        "0.19",
        "On all stages but the last the pipeline engine has started the timers of the backward pass when it calls "
        "what starts them again, and that fails.",
        canaries.pipeline_starts_timers_itself,
        start_timers_once,
    ),
    Patch(
        "pipeline-profile-not-printed",
        "0.19",
        "The pipeline engine counts operations for the flops profiler but never prints the result.",
        canaries.pipeline_prints_no_profile,
        print_profile,
    ),
    Patch(
        "plain-engine-monitors-no-loss",
        "0.19",
        "Monitors get the loss of a step from the pipeline engine and not from the plain one.",
        canaries.plain_engine_monitors_no_loss,
        monitor_loss,
    ),
)
