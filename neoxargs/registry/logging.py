"""What a run reports, and to whom; DeepSpeed's own monitors are in deepspeed_monitors.py."""

from __future__ import annotations

from typing import Any

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural, Positive


class Logging(Group, origin="NeoX"):
    """Log lines, files and TensorBoard."""

    log_interval: Count = param(100, origin="Meg", megatron="log-interval")
    run_dir: str = param(derived=True)
    log_dir: str | None = param(None)
    tensorboard_dir: str | None = param(None, origin="Meg", megatron="tensorboard-dir")
    log_grad_norm: bool = param(False)
    log_grad_pct_zeros: bool = param(False)
    log_param_norm: bool = param(False, megatron="log-params-norm")
    log_optimizer_states: bool = param(False)
    log_gradient_noise_scale: bool = param(False)
    gradient_noise_scale_n_batches: Count = param(5)
    gradient_noise_scale_cpu_offload: bool = param(False)
    peak_theoretical_tflops: Positive | None = param(None)
    git_hash: str | None = param(None, derived=True)


class Wandb(Group, origin="NeoX"):
    """Weights & Biases."""

    use_wandb: bool | None = param(None)
    wandb_project: str = param("neox", megatron="wandb-project")
    wandb_group: str | None = param(None)
    wandb_run_name: str | None = param(None, megatron="wandb-exp-name")
    wandb_team: str | None = param(None, megatron="wandb-entity")
    wandb_host: str = param("https://api.wandb.ai")
    wandb_init_all_ranks: bool = param(False)


class Comet(Group, origin="NeoX"):
    """Comet."""

    use_comet: bool | None = param(None)
    comet_workspace: str | None = param(None)
    comet_project: str | None = param(None)
    comet_experiment_name: str | None = param(None)
    comet_tags: list[str] | None = param(None)
    comet_others: dict[str, Any] | None = param(None)
    comet_experiment: Any = param(None, to=())


class Profiling(Group, origin="NeoX"):
    """Where time and memory go."""

    profile: bool = param(False, origin="Meg", megatron="profile")
    profile_step_start: Natural = param(10, origin="Meg", megatron="profile-step-start")
    profile_step_stop: Natural = param(12, megatron="profile-step-end")
    memory_profiling: bool = param(False, megatron="record-memory-history")
    memory_profiling_path: str | None = param(None, megatron="memory-snapshot-path")
