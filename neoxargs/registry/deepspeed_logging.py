"""DeepSpeed's logging: log lines, trackers, communication log, timers and the flops profiler.

`tensorboard_dir`, `use_wandb` and `use_comet` are the usual way to track a run; these sections make DeepSpeed write
its own curves (loss, learning rate, loss scale) beside them.
"""

from __future__ import annotations

from neoxargs.registry import data_file
from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count


class Reports(Group, origin="DSC", effect="log"):
    """What DeepSpeed's engine prints."""

    steps_per_print: Count | None = param(10, receiver_default=None)
    """Number of steps after which DeepSpeed prints step, skipped steps, learning rate and momentum; None prints
    nothing. train.py has its own log lines, with loss and speed, and DeepSpeed's appear only if this is set or
    `wall_clock_breakdown` needs them."""

    wall_clock_breakdown: bool = param(False)
    """Print the times of the forward pass, backward pass, communication and optimizer step. Waiting for the GPU after
    each of these slows training a little."""

    memory_breakdown: bool = param(False)
    """Print GPU memory before and after each part of a step."""

    dump_state: bool = param(False)
    """Print the engine's settings once when it is built."""


data_file.declare(
    __name__, "tensorboard", "wandb", "csv_monitor", "comet", "comms_logger", "flops_profiler", "timers.throughput"
)
