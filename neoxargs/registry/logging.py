"""Logging and trackers; DeepSpeed's own monitors are in deepspeed_logging.py."""

from __future__ import annotations

from typing import Any

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural, Positive


class Logging(Group, origin="NeoX", effect="log"):
    """Log lines, files and TensorBoard."""

    log_interval: Count = param(100, origin="Meg", megatron="log-interval")
    """Iterations between two log lines; each reports means over the iterations since the previous line."""

    run_dir: str = param(derived=True, ours=True)
    """Folder for everything that a run writes except checkpoints: metrics.jsonl, report.html, the loss curve, rank logs
    and the resolved configuration. Default: `save` if it is set, otherwise `runs`."""

    log_dir: str | None = param(None)
    """Folder to which the standard output and standard error of every rank are also written."""

    tensorboard_dir: str | None = param(None, origin="Meg", megatron="tensorboard-dir")
    """Folder that TensorBoard event files are written to. If not set, none are written."""

    log_grad_norm: bool = param(False)
    """Reports the norm of every parameter's gradient, before clipping, as `gradient_norms/NAME` at every step to
    TensorBoard, Weights & Biases, Comet and metrics.jsonl; needs one more reduction in every step. The norm over all
    parameters is always reported."""

    log_grad_pct_zeros: bool = param(False)
    """Reports the percentage of exact zeros in every parameter's gradient as `pct_grad_zeros/NAME`, to the same places
    as `log_grad_norm`."""

    log_param_norm: bool = param(False, megatron="log-params-norm")
    """Reports the norm of every parameter after every step as `parameter_norms/NAME`, to the same places as
    `log_grad_norm`."""

    log_optimizer_states: bool = param(False)
    """Reports, after every step, the norm of every optimizer state that is as large as its parameter, as
    `optimizer_state_norms/NAME_STATE`, to the same places as `log_grad_norm`."""

    log_gradient_noise_scale: bool = param(False)
    """Reports `train/noise_scale`, the gradient noise scale (McCandlish et al. 2018) in samples, a guide to the largest
    useful batch size. Keeps a sum of gradients in fp32; the estimate restarts when a run is resumed."""

    gradient_noise_scale_n_batches: Count = param(5)
    """Number of consecutive batches whose mean gradient the noise scale compares with that of one batch; at least 2."""

    gradient_noise_scale_cpu_offload: bool = param(False, effect="memory")
    """Keeps the sum of gradients for the noise scale in host memory instead of on the device."""

    peak_theoretical_tflops: Positive | None = param(None)
    """Peak TFLOP/s of one device in the run's precision, from the data sheet, for the share of it that a run reaches
    (MFU). By default, that of the GPU for 16 bits, if deepy knows the GPU."""

    git_hash: str | None = param(None, derived=True)
    """Commit of the source tree the run was started from. Looked up when a run is launched."""


class Wandb(Group, origin="NeoX", effect="log"):
    """Weights & Biases."""

    use_wandb: bool | None = param(None)
    """Reports to Weights & Biases. Off by default; GPT-NeoX turns it on by default if it finds an API key."""

    wandb_project: str = param("neox", megatron="wandb-project")
    """Project on Weights & Biases."""

    wandb_group: str | None = param(None)
    """Name under which the ranks and restarts of one run are grouped on Weights & Biases."""

    wandb_run_name: str | None = param(None, megatron="wandb-exp-name")
    """Name of the run on Weights & Biases. If not set, Weights & Biases generates one."""

    wandb_team: str | None = param(None, megatron="wandb-entity")
    """Team or user that owns the project on Weights & Biases."""

    wandb_host: str = param("https://api.wandb.ai")
    """Address of the Weights & Biases server, for private installations."""

    wandb_init_all_ranks: bool = param(False, effect="none", no_effect_reason="only rank 0 reports")
    """Every rank reports to Weights & Biases, not only rank 0."""


class Comet(Group, origin="NeoX", effect="log"):
    """Comet."""

    use_comet: bool | None = param(None)
    """Reports to Comet. Off by default, even if an API key is found in the environment."""

    comet_workspace: str | None = param(None)
    """Workspace on Comet. Default: the account's own."""

    comet_project: str | None = param(None)
    """Project on Comet. Default: Comet's project "general"."""

    comet_experiment_name: str | None = param(None)
    """Name of the experiment on Comet. If not set, Comet generates one."""

    comet_tags: list[str] | None = param(None)
    """Labels attached to the experiment on Comet."""

    comet_others: dict[str, Any] | None = param(None)
    """Further keys and values attached to the experiment on Comet."""

    comet_experiment: Any = param(
        None, to=(), effect="none", no_effect_reason="a file cannot contain an experiment object"
    )
    """Handle of the running Comet experiment. Set by the program; not for configuration files."""


class Profiling(Group, origin="NeoX", effect="log"):
    """Measurements of time and memory."""

    profile: bool = param(False, origin="Meg", megatron="profile")
    """Records a PyTorch profiler trace from `profile_step_start` to `profile_step_stop`."""

    profile_step_start: Natural = param(10, origin="Meg", megatron="profile-step-start")
    """First iteration that `profile` records."""

    profile_step_stop: Natural = param(12, megatron="profile-step-end")
    """Iteration at which `profile` stops recording; this iteration itself is not recorded."""

    memory_profiling: bool = param(False, megatron="record-memory-history")
    """Records the main rank's allocations: on a GPU the last 100,000 of the run, for PyTorch's memory viewer; on a CPU
    those from `profile_step_start` to `profile_step_stop`, as a trace for Perfetto."""

    memory_profiling_path: str | None = param(None, megatron="memory-snapshot-path")
    """Folder for `mem_snapshot.pickle` (on a CPU `mem_snapshot.json`), or a file with a different name. Default:
    `run_dir`."""
