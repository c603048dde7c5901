"""DeepSpeed's logging: log lines, trackers, communication log, timers and the flops profiler.

`tensorboard_dir`, `use_wandb` and `use_comet` are the usual way to track a run; these sections make DeepSpeed write
its own curves (loss, learning rate, loss scale) beside them.
"""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, NonNegative


class Reports(Group, origin="DSC", effect="log"):
    """What DeepSpeed's engine prints."""

    steps_per_print: Count | None = param(10, receiver_default=None)
    """Print step, learning rate and speed every this many steps; None prints nothing. train.py has its own log lines
    and prints these only if this is set, or needed by `wall_clock_breakdown`."""

    wall_clock_breakdown: bool = param(False)
    """Print the time of forward, backward, communication and step. Waiting for the GPU at each slows training a
    little."""

    memory_breakdown: bool = param(False)
    """Print GPU memory before and after each part of a step."""

    dump_state: bool = param(False)
    """Print the engine's settings once when it is built."""


class TensorboardMonitor(Group, origin="DSC", effect="log", section="tensorboard"):
    """DeepSpeed's own TensorBoard files."""

    enabled: bool = param(False)
    """Write them; needs the package tensorboard."""

    output_path: str = param("")
    """Folder to write to; empty means one in the working directory."""

    job_name: str = param("DeepSpeedJobName")
    """Name of the folder inside `output_path`."""


class WandbMonitor(Group, origin="DSC", effect="log", section="wandb"):
    """DeepSpeed's own Weights & Biases run."""

    enabled: bool = param(False)
    """Log to it; needs the package wandb."""

    group: str | None = param(None)
    """Group of runs to file it under."""

    team: str | None = param(None)
    """Team that owns the project."""

    project: str = param("deepspeed")
    """Project to log to."""


class CsvMonitor(Group, origin="DSC", effect="log", section="csv_monitor"):
    """DeepSpeed's own CSV files, one per curve."""

    enabled: bool = param(False)
    """Turn the CSV files on."""

    output_path: str = param("")
    """Folder to write to; empty means one in the working directory."""

    job_name: str = param("DeepSpeedJobName")
    """Name of the folder inside `output_path`."""


class CometMonitor(Group, origin="DSC", effect="log", section="comet"):
    """DeepSpeed's own Comet experiment. What is not given is taken from Comet's own configuration file or its
    COMET_ environment variables."""

    enabled: bool = param(False)
    """Log to it; needs the comet_ml package."""

    samples_log_interval: Count = param(100)
    """Log after every this many samples."""

    project: str | None = param(None)
    """Project to log to."""

    workspace: str | None = param(None)
    """Workspace that owns the project."""

    api_key: str | None = param(None)
    """Key of the account. Set COMET_API_KEY in the environment instead, because the files and logs of a run show this
    value."""

    experiment_name: str | None = param(None)
    """Name of the experiment."""

    experiment_key: str | None = param(None)
    """Identifier of the experiment, 32 to 50 letters and digits; with it a resumed run continues the same curves."""

    online: bool | None = param(None)
    """Send to the server (true, also when not given) or store locally for a later upload."""

    mode: Literal["get", "create", "get_or_create"] | None = param(None)
    """Continue the experiment that `experiment_key` names, make a new one, or whichever applies (also when not
    given)."""


class CommsLogger(Group, origin="DSC", effect="log", section="comms_logger"):
    """Sizes, times and bandwidths of communication that goes through DeepSpeed."""

    enabled: bool = param(False)
    """Record them. Every recorded operation is waited for, which slows training."""

    prof_all: bool = param(True)
    """Record all operations; false records those in `prof_ops`."""

    prof_ops: list[str] = param([])
    """Names of operations to record, such as `all_reduce`."""

    verbose: bool = param(False)
    """Log each operation when it happens instead of only a summary on demand."""

    debug: bool = param(False)
    """Add the name of the calling function to each operation."""


class FlopsProfiler(Group, origin="DSC", effect="log", section="flops_profiler"):
    """Counts of floating point operations, parameters and time per module, taken once during a run."""

    enabled: bool = param(False)
    """Take them. Turns `wall_clock_breakdown` on as well."""

    recompute_fwd_factor: NonNegative = param(0.0)
    """Extra forward passes per step to count for recomputation: 1 when every layer is recomputed."""

    profile_step: Count = param(1)
    """The step to measure; the first is slowed by warming up."""

    module_depth: int = param(-1)
    """How deep into nested modules the summary goes; -1 is all the way."""

    top_modules: Count = param(1)
    """How many modules to list at each depth, the heaviest first."""

    detailed: bool = param(True)
    """Print the model module by module as well."""

    output_file: str | None = param(None)
    """File for the result; none given prints it."""


class ThroughputTimer(Group, origin="DSC", effect="log", section="timers.throughput"):
    """The clock behind the speed that DeepSpeed prints."""

    enabled: bool = param(True)
    """Whether throughput is measured."""

    synchronized: bool = param(True)
    """Wait for the GPU when taking the time: exact, and a little slower."""
