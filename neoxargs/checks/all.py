"""Checks of what a run needs, made before it starts: one table, of which every command runs a part.

One module per subject; each function takes a resolved configuration and returns the problems of one kind. The order of
CHECKS is the order in which problems are reported. Whatever a launch can refuse is a row of it, apart from the memory
of the devices (plan/gate.py) and the lock of the run (processes/run_lock.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.programs import Program
from neoxargs.base.record import Record
from neoxargs.checks import attention, claimed_size, receivers, trainer
from neoxargs.checks.checkpoint import folders, frozen_model, model, schedule, vocabulary
from neoxargs.checks.data import documents, files, usage
from neoxargs.checks.machine import disk_space, hardware, launcher, packages, secrets
from neoxargs.config.config import Config
from neoxargs.facts.context import undivided_evaluation
from neoxargs.facts.vocab import too_few_rows
from neoxargs.files.checkpoints.optimizer_state import other_optimizer
from neoxargs.runs.run_spec import RunSpec

#: What a check looks at. `program`: values that depend on which script is launched. `trainer`: the packages that every
#: run needs. `machine`: what else is installed here. `folders`: those that the run writes to. `command`: the command
#: that starts the ranks. `hosts`: the other hosts, which takes seconds.
Subject = Literal["values", "program", "trainer", "files", "folders", "machine", "command", "hosts"]
#: What a launch checks before it looks at other hosts.
HERE: tuple[Subject, ...] = ("values", "program", "trainer", "files", "folders", "machine", "command")
#: What needs nothing but the values of the configuration: neither hosts nor files.
OF_VALUES: tuple[Subject, ...] = ("values", "program")
#: What check names where it could not look because of errors -> the subjects.
KINDS: dict[str, tuple[Subject, ...]] = {
    "values": OF_VALUES,
    "files": ("files",),
    "folders": ("folders",),
    "this machine": ("trainer", "machine", "command"),
}
#: What has no answer without the packages of the trainer.
NEEDS_TRAINER: tuple[Subject, ...] = ("machine", "command")


class Check(Record):
    """A check: what it looks at, the function, and the programs that it is for (None: a user's script)."""

    subject: Subject
    find: Callable[..., Iterable[Problem]]
    """Takes the run and, if the subject is `command`, the words of the command."""
    programs: tuple[Program | None, ...] = ("train",)


#: Ids of problems of the contents of data files.
WRONG_DATA = (
    "data-file-damaged", "data-file-changed", "data-other-tokenizer", "labels-as-data", "labels-do-not-match",
    "pairs-do-not-match", "rewards-do-not-match", "padded-vocab-too-small",
)  # fmt: skip


def problems(
    spec: RunSpec,
    program: Program | None,
    subjects: Container[Subject] = HERE,
    words: Sequence[str] = (),
    lenient: Container[Subject] = (),
) -> list[Problem]:
    """Return what a program lacks, of these subjects.

    words: the command that starts the ranks. lenient: the subjects of which every problem is a warning, except for the
    contents of data files that are here: they are the data of the run, wherever it starts.
    """
    found: list[Problem] = []
    lacks_trainer = False
    for check in CHECKS:
        if check.subject not in subjects or program not in check.programs:
            continue
        if lacks_trainer and check.subject in NEEDS_TRAINER:
            continue
        arguments = (spec, words) if check.subject == "command" else (spec,)
        try:
            new = spec.config.found(partial(check.find, *arguments))
        except Problems as stop:  # of a checkpoint in a format that this deepy does not know
            new = stop.problems
        warns = check.subject in lenient
        found += (each.as_warning() if warns and each.id not in WRONG_DATA else each for each in new)
        lacks_trainer |= check.subject == "trainer" and bool(new)
    return found


def fit_of_checkpoint(config: Config) -> list[Problem]:
    """Return in what the checkpoint that is only read is not the one of this configuration."""
    checkpoint = model.checkpoint_to_read(config)
    frozen = frozen_model.frozen_model_problems(config, checkpoint, training=False)
    if no_text := [*model.reward_models_write_nothing(config), *model.other_head(config, checkpoint)]:
        return no_text
    checks = (model.other_model, model.other_base_shapes, vocabulary.other_vocabulary)
    found = config.found(*(partial(check, config, checkpoint) for check in checks))
    return [*found, *frozen, *folders.unread_checkpoint(config)]


# -- one function for each row that needs more than a configuration --------------------------------------------------


def _trainer(spec: RunSpec) -> Iterator[Problem]:
    # The packages and devices of this machine say nothing about other hosts.
    return iter(()) if spec.resources.remote else packages.missing_trainer()


def _checkpoint_to_read(spec: RunSpec) -> list[Problem]:
    """Return what is wrong with the checkpoint that generate.py and eval.py read."""
    return list(folders.no_checkpoint_to_read(spec.config)) or fit_of_checkpoint(spec.config)


def _read_by_generate(spec: RunSpec) -> list[Problem]:
    """Return what is wrong with the prompts that generate.py reads, or with the template that makes them."""
    config, options = spec.config, spec.config.generation
    if options.text_gen_type == "chat":
        return files.unusable_chat_template(config)
    # A pipe can be read only once, by generate.py itself.
    if options.text_gen_type != "input-file" or Path(options.sample_input_file or "").is_fifo():
        return []
    return [*files.unreadable_prompts(config, "sample_input_file"), *files.empty_lines(config)]


def _continued(spec: RunSpec) -> Iterator[Problem]:
    """Yield what is wrong with the checkpoint that training continues from."""
    config = spec.config
    checkpoint = model.loaded_checkpoint(config)
    checks = (
        model.skipped_checkpoints,
        model.other_head,
        model.other_model,
        model.other_base_shapes,
        vocabulary.other_vocabulary,
        other_optimizer,
        schedule.other_schedule,
        schedule.other_epochs,
        model.changed_training,
        model.other_data,
        frozen_model.frozen_model_problems,
    )
    yield from config.found(*(partial(check, config, checkpoint) for check in checks))
    if config.checkpoint.load or config.mup.use_mup:
        from neoxargs.checks.checkpoint.neox import neox_base_shapes, neox_checkpoint  # few runs need it

        yield from config.found(partial(neox_checkpoint, config), partial(neox_base_shapes, config))


def _installed(spec: RunSpec) -> list[Problem]:
    config, device = spec.config, spec.resources.device
    if spec.resources.remote or not packages.can_train_here():
        return [*packages.untested_packages(spec.assumed)] if spec.assumed else []
    absent = config.found(lambda: packages.missing_packages(config))
    absent = absent or config.found(lambda: secrets.missing_wandb_key(config, os.environ))
    found = config.found(
        lambda: packages.missing_backend(config),
        lambda: packages.missing_harness(config, training=True),
        lambda: hardware.ops_that_cannot_compile(config, device),
        lambda: hardware.layers_that_cannot_compile(config, device),
        lambda: hardware.unwritable_nvme(config),
        lambda: hardware.gds_without_gpus(config, device),
        lambda: hardware.gpu_only_kernels(config, device),
    )
    return [*packages.untested_packages(spec.assumed), *absent, *found]


def _command(spec: RunSpec, words: Sequence[str]) -> Iterator[Problem]:
    """Return why the command that starts the ranks would fail."""
    return launcher.problems(spec.config, spec.resources, str(spec.config.get("user_script")), words, os.environ)


def _hosts(spec: RunSpec) -> list[Problem]:
    from neoxargs.checks.machine.other_hosts import host_problems

    return host_problems(spec.config, spec.resources)


SHIPPED: tuple[Program | None, ...] = ("train", "generate", "eval")
ALL = (*SHIPPED, None)
CHECKS: tuple[Check, ...] = (
    Check("trainer", _trainer, SHIPPED),
    Check("files", lambda spec: files.missing_files(spec.config), ("train", "eval")),
    Check("files", lambda spec: map(Problem.as_warning, files.missing_files(spec.config)), ("generate", None)),
    Check("files", lambda spec: documents.wrong_labels(spec.config), ("train", "eval")),
    Check("files", lambda spec: documents.unpaired_answers(spec.config), ("train", "eval")),
    Check("files", lambda spec: documents.wrong_rewards(spec.config)),
    Check("files", lambda spec: documents.no_document_fits(spec.config)),
    Check("files", lambda spec: documents.empty_splits(spec.config)),
    Check("files", lambda spec: documents.shorter_than_a_sample(spec.config)),
    Check("files", lambda spec: usage.missing_ends(spec.config), ("train", "eval")),
    Check("files", lambda spec: usage.mixture_ends_early(spec.config)),
    Check("files", lambda spec: usage.often_repeated(spec.config)),
    Check("files", lambda spec: usage.wasted_samples(spec.config)),
    Check("files", lambda spec: files.unnamed_files(spec.config)),
    Check("files", lambda spec: too_few_rows(spec.config), SHIPPED),
    Check("files", lambda spec: files.unreadable_base_shapes(spec.config), SHIPPED),
    Check("files", lambda spec: files.unreadable_prompts(spec.config, "eval_prompts_file")),
    Check("files", lambda spec: folders.missing_checkpoint(spec.config)),
    Check("files", _continued),
    Check("files", _checkpoint_to_read, ("generate", "eval")),
    Check("files", lambda spec: model.unlearned_positions(spec.config), ("generate", "eval")),
    Check("files", lambda spec: fit_of_checkpoint(spec.config), ("export",)),
    Check("files", _read_by_generate, ("generate",)),
    Check("machine", lambda spec: hardware.fp16_without_support(spec.config, spec.resources)),
    Check("machine", lambda spec: hardware.fp16_on_this_machine(spec.config, spec.resources)),
    Check("machine", lambda spec: hardware.fp32_without_tf32(spec.config, spec.resources.device)),
    Check("machine", lambda spec: hardware.backend_of_gpus(spec.config, spec.resources.device)),
    Check("machine", attention.unusable_here),
    Check("machine", _installed),
    Check("machine", lambda spec: packages.missing_harness(spec.config), ("eval",)),
    Check("folders", lambda spec: folders.overwritten_checkpoint(spec.config)),
    Check("folders", lambda spec: disk_space.folder_problems(spec.config)),
    Check("folders", lambda spec: disk_space.index_problems(spec.config, spec.resources.remote)),
    Check("folders", lambda spec: disk_space.unwritable_file(spec.config, "sample_output_file"), ("generate",)),
    Check("folders", lambda spec: disk_space.unwritable_folders(spec.config, "run_dir"), ("generate", "eval", None)),
    Check("values", lambda spec: trainer.trainer_problems(spec.config)),
    Check("values", lambda spec: undivided_evaluation(spec.config), ("eval",)),
    Check("values", lambda spec: trainer.trainer_problems(spec.config, training=False), ("generate", "eval")),
    Check("values", lambda spec: claimed_size.other_size(spec.config, spec.texts)),
    Check("values", lambda spec: hardware.groups_across_hosts(spec.config, spec.resources)),
    Check("values", attention.unusable_kernels),
    Check("values", attention.stored_scores),
    Check("values", receivers.receiver_problems),
    Check("program", lambda spec: trainer.plugin_value_problems(spec.config), SHIPPED),
    Check("values", lambda spec: secrets.in_configuration(spec.config), ALL),
    Check("command", lambda spec, _: secrets.on_command_lines(spec.config, spec.resources, os.environ), ALL),
    Check("command", _command, ALL),
    Check("hosts", _hosts, ALL),
)
