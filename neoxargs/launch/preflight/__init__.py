"""Checks of what a run needs, made before it starts.

One module per subject; each function takes a resolved configuration and returns the problems of one kind. The order
below is the order in which problems are reported.
"""

from __future__ import annotations

import os
from pathlib import Path

from neoxargs.launch.preflight.checkpoints import (
    missing_checkpoint,
    no_checkpoint_to_read,
    overwritten_checkpoint,
    unread_checkpoint,
)
from neoxargs.launch.preflight.data_files import empty_lines, missing_files, unnamed_files, unreadable_prompts
from neoxargs.launch.preflight.disk_space import folder_problems, index_problems, unwritable_file, unwritable_folders
from neoxargs.launch.preflight.documents import (
    empty_splits,
    no_document_fits,
    shorter_than_a_sample,
    unpaired_answers,
    wrong_labels,
    wrong_rewards,
)
from neoxargs.launch.preflight.frozen_model import frozen_model_problems
from neoxargs.launch.preflight.hardware import (
    fp16_without_support,
    fp32_without_tf32,
    gpu_only_kernels,
    layers_that_cannot_compile,
    nvme_problems,
    ops_that_cannot_compile,
)
from neoxargs.launch.preflight.packages import (
    can_train_here,
    missing_backend,
    missing_harness,
    missing_packages,
    missing_trainer,
    untested_packages,
)
from neoxargs.launch.preflight.resumed_model import (
    changed_training,
    checkpoint_to_read,
    loaded_checkpoint,
    other_base_shapes,
    other_data,
    other_head,
    other_model,
    other_optimizer,
    reward_models_write_nothing,
    skipped_checkpoints,
)
from neoxargs.launch.preflight.resumed_schedule import other_epochs, other_schedule
from neoxargs.launch.preflight.resumed_vocabulary import other_vocabulary
from neoxargs.launch.preflight.secrets import missing_wandb_key
from neoxargs.launch.run_spec import RunSpec
from neoxargs.launch.script import Program
from neoxargs.problems import Problem
from neoxargs.resolve.config import Config
from neoxargs.resolve.trainer_support import unsupported as trainer_support


def needs(program: Program | None, spec: RunSpec, elsewhere: bool = False) -> list[Problem]:
    """Return what a program lacks on this machine; for sampling and a user's script, missing data is a warning.

    elsewhere: whether the run is for another machine, so that nothing is said about the packages of this one.
    """
    config = spec.config
    # Alone, because without these packages most of the other checks have no answer.
    if program and not (elsewhere or spec.resources.remote) and (absent := list(missing_trainer())):
        return absent
    if program == "train":
        return training_problems(spec)
    logs = unwritable_folders(config, "run_dir")
    if program == "eval":
        data = [*missing_files(config), *wrong_labels(config), *unpaired_answers(config)]
        return [*data, *_checkpoint_to_read(config), *missing_harness(config), *logs]
    own: list[Problem] = []
    if program == "generate":
        own = [*_read_by_generate(config), *unwritable_file(config, "sample_output_file")]
    return [*map(Problem.as_warning, missing_files(config)), *own, *logs]


def _read_by_generate(config: Config) -> list[Problem]:
    """Return what is wrong with the checkpoint and the prompts that generate.py reads."""
    options = config.generation
    # A pipe can be read only once, by generate.py itself.
    from_file = options.text_gen_type == "input-file" and not Path(options.sample_input_file or "").is_fifo()
    lines = [*unreadable_prompts(config, "sample_input_file"), *empty_lines(config)] if from_file else []
    return [*_checkpoint_to_read(config), *lines]


def _checkpoint_to_read(config: Config) -> list[Problem]:
    """Return what is wrong with the checkpoint that generate.py and eval.py read."""
    return list(no_checkpoint_to_read(config)) or fit_of_checkpoint(config)


def fit_of_checkpoint(config: Config) -> list[Problem]:
    """Return in what the checkpoint that is only read is not the one of this configuration."""
    checkpoint = checkpoint_to_read(config)
    frozen = frozen_model_problems(config, checkpoint, training=False)
    if no_text := [*reward_models_write_nothing(config), *other_head(config, checkpoint)]:
        return no_text
    model = [
        *other_model(config, checkpoint),
        *other_base_shapes(config, checkpoint),
        *other_vocabulary(config, checkpoint),
    ]
    return [*model, *frozen, *unread_checkpoint(config)]


def training_problems(spec: RunSpec) -> list[Problem]:
    """Return what training lacks on this machine, and why it may not save its checkpoints."""
    config = spec.config
    folders = [*folder_problems(config), *index_problems(config, spec.resources.remote)]
    return [*machine_problems(spec), *overwritten_checkpoint(config), *folders]


def machine_problems(spec: RunSpec) -> list[Problem]:
    """Return what training lacks on this machine; another machine may have it."""
    config, resources = spec.config, spec.resources
    problems = [*missing_files(config), *wrong_labels(config), *unpaired_answers(config), *wrong_rewards(config)]
    problems += [*no_document_fits(config), *empty_splits(config), *shorter_than_a_sample(config)]
    problems += [*unnamed_files(config), *unreadable_prompts(config, "eval_prompts_file"), *missing_checkpoint(config)]
    checkpoint = loaded_checkpoint(config)
    checks = (
        skipped_checkpoints,
        other_head,
        other_model,
        other_base_shapes,
        other_vocabulary,
        other_optimizer,
        other_schedule,
        other_epochs,
        changed_training,
    )
    for check in (*checks, other_data):
        problems += check(config, checkpoint)
    problems += frozen_model_problems(config, checkpoint)
    if config.checkpoint.load:
        from neoxargs.launch.preflight.neox_checkpoint import neox_checkpoint  # few runs need it

        problems += neox_checkpoint(config)
    problems += [*fp16_without_support(config, resources), *fp32_without_tf32(config, resources.device)]
    # The packages and devices of this machine say nothing about other hosts.
    if not resources.remote and can_train_here():
        absent = list(missing_packages(config)) or list(missing_wandb_key(config, os.environ))
        problems += [*untested_packages(), *absent, *missing_backend(config)]
        problems += missing_harness(config, training=True)
        problems += ops_that_cannot_compile(config, resources.device)
        problems += layers_that_cannot_compile(config, resources.device)
        problems += [*nvme_problems(config, resources.device), *gpu_only_kernels(config, resources.device)]
    return problems


def unsupported(program: Program | None, config: Config) -> list[Problem]:
    """Return the settings that a shipped program does not support; empty for a user's script."""
    if program is None:
        return []
    return [
        *trainer_support.trainer_problems(config, training=program == "train"),
        *trainer_support.plugin_value_problems(config),
    ]
