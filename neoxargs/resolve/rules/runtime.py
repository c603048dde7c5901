"""What the programs do and where they leave it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from neoxargs.registry.plugins import WIDENED
from neoxargs.resolve.rules.rule import CHECKS, DERIVATIONS, Finding, check, derive, refuse, warn


@derive
def text_gen_type(sample_input_file: str | None) -> str:
    """prompts come from sample_input_file if there is one; without, text starts from nothing"""
    return "input-file" if sample_input_file else "unconditional"


@derive
def run_dir(save: str | None) -> str:
    """beside the checkpoints, or in `runs`"""
    return save or "runs"


@derive
def force_multi(deepspeed_slurm: bool, deepspeed_mpi: bool) -> bool | None:
    """deepspeed_slurm and deepspeed_mpi start ranks through the cluster's launcher, on one machine too"""
    return True if deepspeed_slurm or deepspeed_mpi else None


@derive
def launcher(deepspeed_slurm: bool, deepspeed_mpi: bool) -> Literal["openmpi", "slurm"] | None:
    """deepspeed_mpi is started by Open MPI's mpirun, deepspeed_slurm by srun"""
    return "openmpi" if deepspeed_mpi else "slurm" if deepspeed_slurm else None


@check
def slurm_account_needs_slurm(comment: str | None, account: str | None, launcher: str) -> Finding | None:
    """comment and account are options of Slurm's srun. With another launcher nobody reads them, and the job is
    accounted to somebody else.

        account: physics
    """
    given = [name for name, value in {"comment": comment, "account": account}.items() if value]
    if not given or launcher in ("slurm", "srun") or launcher in WIDENED.get("launcher", ()):  # a plugin's gets them
        return None
    what = f"launcher ({launcher}) does not read {' and '.join(given)}; only slurm and srun do"
    return warn(what, "write launcher: slurm", about=[*given, "launcher"])


@check
def deepspeed_extra_args_are_not_parameters(
    deepspeed_extra_args: Mapping[str, Any] | None, written: Collection[str]
) -> Finding | None:
    """deepspeed_extra_args is copied into DeepSpeed's JSON unseen. A parameter in it would escape the rules that other
    values follow from (the batch, ZeRO, precision), and GPT-NeoX's half and DeepSpeed's half of the run would differ.

        deepspeed_extra_args: {zero_optimization: {stage: 1}}
    """
    for key in deepspeed_extra_args or {}:
        if key in _followed() or key in written:
            what = f"deepspeed_extra_args has {key}, which is a parameter that others follow"
            return refuse(what, f"write {key} at the top level", about=["deepspeed_extra_args", key])
    return None


def _followed() -> set[str]:
    """The parameters and outermost sections that any rule reads or makes."""
    rules = (*DERIVATIONS, *CHECKS)
    return {name.partition(".")[0] for rule in rules for name in (*rule.inputs, *rule.results)}


@check
def profile_steps_in_order(profile_step_start: int, profile_step_stop: int) -> Finding | None:
    """The profiler is started at profile_step_start and writes its trace at profile_step_stop. In another order it is
    never written, and the profiler collects events until the memory of the host is full.

        profile: true
        profile_step_start: 12
        profile_step_stop: 10
    """
    if profile_step_start < profile_step_stop:
        return None
    return refuse(
        f"profile_step_start ({profile_step_start}) must be below profile_step_stop ({profile_step_stop})",
        f"write profile_step_stop: {profile_step_start + 2}",
    )


@check
def gradient_noise_scale_needs_two_batches(
    log_gradient_noise_scale: bool, gradient_noise_scale_n_batches: int
) -> Finding | None:
    """The gradient noise scale compares the gradient of one batch with the mean over several. With one batch both are
    the same, and it divides by 0.

        log_gradient_noise_scale: true
        gradient_noise_scale_n_batches: 1
    """
    if not log_gradient_noise_scale or gradient_noise_scale_n_batches > 1:
        return None
    what = f"gradient_noise_scale_n_batches ({gradient_noise_scale_n_batches}) must be at least 2"
    return refuse(what, "the default is 5", about=["gradient_noise_scale_n_batches"])
