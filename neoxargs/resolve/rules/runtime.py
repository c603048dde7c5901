"""What the programs do and where they leave it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from neoxargs.problems import Problem
from neoxargs.resolve.rules.rule import CHECKS, DERIVATIONS, Refusal, check, derive


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
def slurm_words_need_slurm(comment: str | None, account: str | None, launcher: str) -> Problem | None:
    """Comment and account reach Slurm through its `srun`."""
    given = [name for name, value in {"comment": comment, "account": account}.items() if value]
    if not given or launcher in ("slurm", "srun"):
        return None
    sentence = f"launcher ({launcher}) does not read {' and '.join(given)}; only slurm and srun do"
    return Problem(sentence, hint="write launcher: slurm", severity="warning")


@check
def extra_keys_are_extra(deepspeed_extra_args: Mapping[str, Any] | None, written: Collection[str]) -> Refusal:
    """What other parameters follow must be seen by the rules, and nothing may be said twice."""
    for key in deepspeed_extra_args or {}:
        if key in _followed() or key in written:
            sentence = f"deepspeed_extra_args has {key}, which is a parameter that others follow"
            return sentence, f"write {key} at the top level"
    return None


def _followed() -> set[str]:
    """The parameters and outermost sections that any rule reads or makes."""
    rules = (*DERIVATIONS, *CHECKS)
    return {name.partition(".")[0] for rule in rules for name in (*rule.inputs, *rule.results)}


@check
def profile_steps_in_order(profile_step_start: int, profile_step_stop: int) -> Refusal:
    """A profile begins before it ends."""
    if profile_step_start < profile_step_stop:
        return None
    return (
        f"profile_step_start ({profile_step_start}) must be below profile_step_stop ({profile_step_stop})",
        f"write profile_step_stop: {profile_step_start + 2}",
    )


@check
def noise_is_seen_between_batches(log_gradient_noise_scale: bool, gradient_noise_scale_n_batches: int) -> Refusal:
    """The noise scale compares one batch with several."""
    if not log_gradient_noise_scale or gradient_noise_scale_n_batches > 1:
        return None
    return f"gradient_noise_scale_n_batches ({gradient_noise_scale_n_batches}) must be at least 2", "the default is 5"
