"""What DeepSpeed itself prints of a run, where it is asked to; otherwise our own log lines take its place."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from neoxargs.resolve.config import Config

#: GPT-NeoX's default, which asks for nothing unless somebody wrote it.
STEPS_PER_PRINT = 10


def settings(json: dict[str, Any], config: Config) -> dict[str, Any]:
    """DeepSpeed's configuration; its pipeline engine cannot time anything without `steps_per_print`."""
    default = json.get("steps_per_print") == STEPS_PER_PRINT and not config.written("steps_per_print")
    if default and not _times(json):
        return {key: value for key, value in json.items() if key != "steps_per_print"}
    return {"steps_per_print": STEPS_PER_PRINT, **json} if _times(json) else json


def install(engine: Any, json: dict[str, Any], pipelined: bool) -> None:
    """Let an engine be heard that was built silently."""
    communication = json.get("comms_logger", {}).get("enabled")
    if engine.steps_per_print() or _times(json) or communication or json.get("memory_breakdown"):
        logging.getLogger("DeepSpeed").setLevel(logging.INFO)
    if json.get("dump_state") and engine.global_rank == 0:
        _dump(engine)
    if pipelined and engine.flops_profiler_enabled():
        _print_profile(engine)
    if pipelined and json.get("wall_clock_breakdown"):
        engine._start_timers = lambda names: _start(engine, names)


def _start(engine: Any, names: Sequence[str]) -> None:
    """On all stages but the last, the pipeline engine has started the timers of the backward pass when it calls what
    starts them again, and that fails."""
    for name in names:
        if not engine.timers(name).started_:
            engine.timers(name).start()


def _times(json: dict[str, Any]) -> bool:
    return bool(json.get("wall_clock_breakdown") or json.get("flops_profiler", {}).get("enabled"))


def _dump(engine: Any) -> None:
    from deepspeed.runtime.engine import print_configuration

    logger = logging.getLogger("DeepSpeed")
    before = logger.level
    logger.setLevel(logging.INFO)
    engine._config.print("DeepSpeedEngine configuration")
    print_configuration(engine, "DeepSpeedEngine")
    logger.setLevel(before)


def _print_profile(engine: Any) -> None:
    """The pipeline engine counts operations but never prints the result. It is the main rank's stage, as it counts."""
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


def record(engine: Any, loss: float) -> None:
    """Give DeepSpeed's monitors the loss of a step; its plain engine leaves that out, unlike its pipeline engine."""
    if engine.monitor.enabled and engine.global_rank == 0:
        engine.monitor.write_events([("Train/Samples/train_loss", loss, engine.global_samples)])
