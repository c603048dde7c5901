"""DeepSpeed's own log lines and timers, which are off unless the configuration asks for them."""

from __future__ import annotations

import logging
from typing import Any

from neoxargs.config.config import Config
from neoxargs.train.deepspeed import interface, patches

#: GPT-NeoX's default; it does not turn on DeepSpeed's log lines unless the user set it.
STEPS_PER_PRINT = 10
NO_THROUGHPUT = {"throughput": {"enabled": False}}


def settings(json: dict[str, Any], config: Config) -> dict[str, Any]:
    """Return DeepSpeed's configuration with `steps_per_print` only if the user set it or a timer needs it.

    The pipeline engine reports no times without `steps_per_print`. The throughput is measured only if the user set its
    timer: our own log lines have it, and DeepSpeed's plain engine makes the GPU finish before and after each micro
    batch for it.
    """
    if _measures_times(json):
        return {"steps_per_print": STEPS_PER_PRINT, **json}
    if config.is_set("steps_per_print") or json.get("steps_per_print", STEPS_PER_PRINT) != STEPS_PER_PRINT:
        return {"timers": NO_THROUGHPUT, **json}
    silent = {key: value for key, value in json.items() if key != "steps_per_print"}
    return {**silent, "timers": NO_THROUGHPUT}


def install(engine: interface.Engine, json: dict[str, Any]) -> None:
    """Turn on the log lines and timers that the configuration asks for; engines are built with output suppressed."""
    communication = json.get("comms_logger", {}).get("enabled")
    if engine.steps_per_print() or _measures_times(json) or communication or json.get("memory_breakdown"):
        logging.getLogger("DeepSpeed").setLevel(logging.INFO)
    if json.get("dump_state") and engine.global_rank == 0:
        patches.print_state(engine)
    if isinstance(engine, interface.PipelineEngine):
        if engine.flops_profiler_enabled():
            patches.print_profile(engine)
        if json.get("wall_clock_breakdown"):
            patches.start_timers_once(engine)
        if engine.steps_per_print() is None:
            patches.forget_times(engine)
        patches.print_no_second_loss()


def _measures_times(json: dict[str, Any]) -> bool:
    return bool(json.get("wall_clock_breakdown") or json.get("flops_profiler", {}).get("enabled"))
