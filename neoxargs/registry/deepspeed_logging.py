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


class TensorboardMonitor(Group, origin="DSC", effect="log", section="tensorboard"):
    """DeepSpeed's own TensorBoard files."""

    enabled: bool = param(False)
    """Write TensorBoard event files; needs the tensorboard package."""

    output_path: str = param("")
    """Folder for the event files; empty means a folder in the working directory."""

    job_name: str = param("DeepSpeedJobName")
    """Name of the folder inside `output_path`."""


class WandbMonitor(Group, origin="DSC", effect="log", section="wandb"):
    """DeepSpeed's own Weights & Biases run."""

    enabled: bool = param(False)
    """Log to Weights & Biases; needs the wandb package."""

    group: str | None = param(None)
    """Name of the group of runs to which this run belongs."""

    team: str | None = param(None)
    """Team that owns the project."""

    project: str = param("deepspeed")
    """Project to log to."""


class CsvMonitor(Group, origin="DSC", effect="log", section="csv_monitor"):
    """DeepSpeed's own CSV files, one per curve."""

    enabled: bool = param(False)
    """Write CSV files."""

    output_path: str = param("")
    """Folder for the CSV files; empty means a folder in the working directory."""

    job_name: str = param("DeepSpeedJobName")
    """Name of the folder inside `output_path`."""


class CometMonitor(Group, origin="DSC", effect="log", section="comet"):
    """DeepSpeed's own Comet experiment. Settings that are not set come from Comet's own configuration file or its
    COMET_ environment variables."""

    enabled: bool = param(False)
    """Log to Comet; needs the comet_ml package."""

    samples_log_interval: Count = param(100)
    """Number of samples between two log entries."""

    project: str | None = param(None)
    """Project to log to."""

    workspace: str | None = param(None)
    """Workspace that owns the project."""

    api_key: str | None = param(None)
    """Comet API key. Set COMET_API_KEY in the environment instead, because the files and logs of a run show this
    value."""

    experiment_name: str | None = param(None)
    """Name of the experiment."""

    experiment_key: str | None = param(None)
    """Identifier of the experiment, 32 to 50 letters and digits; with it, a resumed run continues the same curves."""

    online: bool | None = param(None)
    """Send to the server (true, the default) or store locally for a later upload (false)."""

    mode: Literal["get", "create", "get_or_create"] | None = param(None)
    """Continue the experiment that `experiment_key` names (`get`), create a new one (`create`), or do whichever is
    possible (`get_or_create`, the default)."""


class CommsLogger(Group, origin="DSC", effect="log", section="comms_logger"):
    """Sizes, times and bandwidths of communication that goes through DeepSpeed."""

    enabled: bool = param(False)
    """Record communication operations. The run waits for each recorded operation, which slows training."""

    prof_all: bool = param(True)
    """Record all operations; false records those in `prof_ops`."""

    prof_ops: list[str] = param([])
    """Names of operations to record, such as `all_reduce`."""

    verbose: bool = param(False)
    """Log each operation as it happens, not only a summary on request."""

    debug: bool = param(False)
    """Add the name of the calling function to each log entry."""


class FlopsProfiler(Group, origin="DSC", effect="log", section="flops_profiler"):
    """The floating point operations, parameters and time of each module, measured once during a run."""

    enabled: bool = param(False)
    """Measure the FLOPs and the time of the model's parts. Turns `wall_clock_breakdown` on as well."""

    recompute_fwd_factor: NonNegative = param(0.0)
    """Extra forward passes per step to count for recomputation: 1 when every layer is recomputed."""

    profile_step: Count = param(1)
    """Step to measure; the first steps are slower than later ones."""

    module_depth: int = param(-1)
    """Maximum depth of nested modules in the summary; -1 means all levels."""

    top_modules: Count = param(1)
    """How many modules to list at each depth, the heaviest first."""

    detailed: bool = param(True)
    """Print the model module by module as well."""

    output_file: str | None = param(None)
    """File for the result. If not set, the result is printed."""


class ThroughputTimer(Group, origin="DSC", effect="log", section="timers.throughput"):
    """The timer for the speed that DeepSpeed prints."""

    enabled: bool = param(True)
    """Whether throughput is measured. In train.py, which prints its own, DeepSpeed's appears only if this and
    `steps_per_print` are set."""

    synchronized: bool = param(True)
    """Wait for the GPU before measuring the time, which is more accurate but a little slower."""
