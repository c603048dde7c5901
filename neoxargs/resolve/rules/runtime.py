"""Programs, launchers and profiling: derived settings and their checks."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from typing import Any, Literal

from neoxargs.base.problems import did_you_mean, listed
from neoxargs.registry import REGISTRY
from neoxargs.registry.plugins import WIDENED
from neoxargs.registry.runner import SRUN
from neoxargs.resolve.rules.rule import CHECKS, DERIVATIONS, Findings, check, derive, refuse, true_names, warn
from neoxargs.resolve.rules.synonyms import yaml_form
from neoxargs.resolve.values.coerce import Mismatch, coerce


@derive
def text_gen_type(sample_input_file: str | None) -> str:
    """input-file if sample_input_file is set, otherwise unconditional"""
    return "input-file" if sample_input_file else "unconditional"


@derive
def run_dir(save: str | None) -> str:
    """the value of save, or `runs` if save is not set"""
    return save or "runs"


@derive
def force_multi(deepspeed_slurm: bool, deepspeed_mpi: bool) -> bool | None:
    """deepspeed_slurm and deepspeed_mpi use the cluster's launcher even on a single host"""
    return True if deepspeed_slurm or deepspeed_mpi else None


@derive
def launcher(deepspeed_slurm: bool, deepspeed_mpi: bool) -> Literal["openmpi", "slurm"] | None:
    """deepspeed_mpi selects openmpi (mpirun), deepspeed_slurm selects slurm (srun)"""
    return "openmpi" if deepspeed_mpi else "slurm" if deepspeed_slurm else None


@check
def slurm_account_needs_slurm(comment: str | None, account: str | None, launcher: str) -> Findings:
    """comment and account are options of Slurm's srun. Other launchers ignore them, and the job would be billed to a
    different account.

        account: physics
    """
    given = true_names(comment=comment, account=account)
    # The launcher of a plugin may use both, so there is no warning.
    if given and launcher not in SRUN and launcher not in WIDENED.get("launcher", ()):
        names = " and ".join(given)
        have, them = ("has", "it") if len(given) == 1 else ("have", "them")
        what = f"{names} {have} no effect with launcher {launcher}: only the launchers {' and '.join(SRUN)} use {them}"
        yield warn(what, f"set launcher to slurm, or remove {names}", about=[*given, "launcher"])


@check
def launcher_args_are_words(launcher_args: str) -> Findings:
    """launcher_args is divided into words as in a shell, so its quotes must be closed. Otherwise, the launcher stops
    before it starts a rank.

        launcher_args: --comment='two words
    """
    try:
        shlex.split(launcher_args)
    except ValueError as error:
        what = f"launcher_args ({launcher_args}) cannot be divided into words: {str(error).lower()}"
        yield refuse(what, "close the quote")


@check
def deepspeed_extra_args_are_not_parameters(
    deepspeed_extra_args: Mapping[str, Any] | None, written: Collection[str]
) -> Findings:
    """deepspeed_extra_args is copied into DeepSpeed's JSON unchecked. A parameter in deepspeed_extra_args would bypass
    the rules that derive other values from this parameter (batch size, ZeRO, precision), and GPT-NeoX and DeepSpeed
    would use different values.

        deepspeed_extra_args: {zero_optimization: {stage: 1}}
    """
    for key in deepspeed_extra_args or {}:
        if key in _names_in_rules() or key in written:
            what = f"deepspeed_extra_args must not contain {key}, which is a deepy parameter"
            yield refuse(what, f"set {key} at the top level instead", about=["deepspeed_extra_args", key])
            return


@check
def deepspeed_extra_args_have_known_keys(deepspeed_extra_args: Mapping[str, Any] | None) -> Findings:
    """DeepSpeed accepts only the keys that it knows in a section, and values of their types: with any other, every rank
    stops when the engine is built. A misspelt section is ignored without a message.

        deepspeed_extra_args: {comms_logger: {enabled: true, vebose: true}}
    """
    yield from _odd_entries(deepspeed_extra_args or {})


def _odd_entries(values: Mapping[str, Any], section: str = "") -> Findings:
    """Yield a finding for each key of a section that is unknown, or has a value of a wrong type."""
    for key, value in values.items():
        name = f"{section}.{key}" if section else key
        shown, parameter = f"deepspeed_extra_args.{name}", REGISTRY.find(name)
        if parameter:
            try:
                coerce(value, parameter.type)
            except Mismatch as mismatch:
                yield refuse(mismatch.sentence(shown), mismatch.advice or "correct the value")
        elif name in REGISTRY.sections:
            if isinstance(value, Mapping):
                yield from _odd_entries(value, name)
            else:
                what = f"{shown} ({yaml_form(value)}) must be a section with keys"
                yield refuse(what, f"write {key}: {{KEY: VALUE}}")
        else:
            names = (*REGISTRY.parameters, *REGISTRY.sections)
            siblings = [each.rpartition(".")[2] for each in names if each.rpartition(".")[0] == section]
            meant = did_you_mean(key, siblings)
            if section:
                yield refuse(f"{shown} is not a key that DeepSpeed knows", meant or f"use {listed(siblings)}")
            elif meant:  # DeepSpeed ignores other keys at the top level, which may be those of another version
                yield warn(f"{shown} is not a key that DeepSpeed knows, and is ignored", meant)


def _names_in_rules() -> set[str]:
    """Return the top-level parameters and sections that any rule reads or derives."""
    rules = (*DERIVATIONS, *CHECKS)
    return {name.partition(".")[0] for rule in rules for name in (*rule.inputs, *rule.results)}


@check
def eval_tasks_interval_needs_tasks(eval_tasks_interval: int, eval_tasks: list[str] | None) -> Findings:
    """eval_tasks_interval sets how often a run evaluates eval_tasks. Without tasks, the run would end without the
    expected results.

        eval_tasks_interval: 100
    """
    if eval_tasks_interval and not eval_tasks:
        what = f"eval_tasks_interval ({eval_tasks_interval}) needs eval_tasks, which is not set"
        yield refuse(what, "set eval_tasks to names of lm_eval tasks, for example [lambada_openai]")


@check
def eval_prompts_are_texts(eval_prompts: list[str] | None) -> Findings:
    """eval_prompts is a list of texts, each of which the model continues. A number would be continued as text too,
    although it was probably meant as the number of prompts or of new tokens.

        eval_prompts: [3]
    """
    if numbers := [prompt for prompt in eval_prompts or () if prompt.replace(".", "", 1).isdecimal()]:
        what = f"eval_prompts contains the number {numbers[0]}, which is used as the text of a prompt"
        yield warn(what, "write each prompt as text; to set how much is generated, use num_samples and maximum_tokens")


@check
def profile_steps_in_order(profile_step_start: int, profile_step_stop: int) -> Findings:
    """The profiler starts at profile_step_start and writes its trace at profile_step_stop. In the opposite order, the
    trace is never written, and the profiler collects events until the host runs out of memory.

        profile: true
        profile_step_start: 12
        profile_step_stop: 10
    """
    if profile_step_start >= profile_step_stop:
        yield refuse(
            f"profile_step_start ({profile_step_start}) must be below profile_step_stop ({profile_step_stop})",
            f"set profile_step_stop to {profile_step_start + 2}",
        )


@check
def gradient_noise_scale_needs_two_batches(
    log_gradient_noise_scale: bool, gradient_noise_scale_n_batches: int
) -> Findings:
    """The gradient noise scale compares the gradient of one batch with the mean over several batches. With one batch,
    the two are the same, and the formula divides by 0.

        log_gradient_noise_scale: true
        gradient_noise_scale_n_batches: 1
    """
    if log_gradient_noise_scale and gradient_noise_scale_n_batches <= 1:
        what = f"gradient_noise_scale_n_batches ({gradient_noise_scale_n_batches}) must be at least 2"
        advice = "remove gradient_noise_scale_n_batches to use the default of 5"
        yield refuse(what, advice, about=["gradient_noise_scale_n_batches"])
