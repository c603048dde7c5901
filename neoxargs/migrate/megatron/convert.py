"""Convert a Megatron-LM script or command line to YAML, the inverse of `--emit megatron`.

flags.py has the parameter of each flag, unsupported_flags.py the reason where there is none. Megatron-LM's default is
written out if its flag is missing and the dialect has another default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems, close_matches, sentence
from neoxargs.migrate.deepspeed.convert import settings_of
from neoxargs.migrate.deepspeed.defaults import ASSUMED, absent_settings
from neoxargs.migrate.deepspeed.lenient_json import Block, blocks
from neoxargs.migrate.deepspeed.placeholders import without_placeholders
from neoxargs.migrate.deepspeed.versions import chosen, versions
from neoxargs.migrate.megatron.experts import expert_defaults, is_megatron_deepspeed
from neoxargs.migrate.megatron.flags import (
    SPECIAL,
    by_flag,
    is_read,
    is_switch,
    parameters_of,
    read_flag,
)
from neoxargs.migrate.megatron.launcher import (
    index_of_program,
    is_of_gpt,
    kind_of_program,
    note_hostfile,
    read_launcher,
)
from neoxargs.migrate.megatron.open_values import (
    leave_further_flags,
    leave_placeholder,
    undecided,
    unset_variables,
    without_remarks,
)
from neoxargs.migrate.megatron.reading import OLD_NAMES, Option, Reading, options_of
from neoxargs.migrate.megatron.slurm import Job, read_job
from neoxargs.migrate.megatron.unsupported_flags import is_listed, reason
from neoxargs.migrate.result import Result, new_file
from neoxargs.migrate.run_script import Run, run_script
from neoxargs.migrate.shell.script import Script, read_script
from neoxargs.migrate.shell.values import Word
from neoxargs.migrate.source import CURRENT_DIALECT
from neoxargs.registry import REGISTRY
from neoxargs.resolve.yaml import nodes
from neoxargs.resolve.yaml.write import Setting, yaml_text

#: Megatron-LM's defaults that differ from this dialect's.
DEFAULTS = {"attention_dropout": 0.1, "hidden_dropout": 0.1, "weight_decay": 0.01, "warmup": 0.0}
#: (flag, value) -> further defaults that differ if the flag has that value.
DEFAULTS_WITH: dict[tuple[str, str], dict[str, Any]] = {
    ("normalization", "RMSNorm"): {"rms_norm_epsilon": 1e-5},
    ("optimizer", "sgd"): {"optimizer.params.momentum": 0.9},
    ("optimizer", "lion"): {"optimizer.params.betas": [0.95, 0.98]},
    ("optimizer", "muon"): {
        "optimizer.params.momentum": 0.9,
        "optimizer.params.nesterov": False,
        "optimizer.params.adjust_lr_fn": "spectral",
    },
}
#: Flag -> what DeepSpeed reads from its JSON alone: with --deepspeed, nothing is made that would read the flag.
IN_JSON_ONLY = {
    "zero-stage": "zero_optimization.stage",
    "clip-grad": "gradient_clipping",
    "loss-scale": "fp16.loss_scale",
    "initial-loss-scale": "fp16.initial_scale_power",
    "loss-scale-window": "fp16.loss_scale_window",
    "hysteresis": "fp16.hysteresis",
    "min-loss-scale": "fp16.min_loss_scale",
}
#: Fusions that Megatron-LM has on by default in every model.
FUSIONS = (
    "scaled_upper_triang_masked_softmax_fusion", "scaled_masked_softmax_fusion", "bias_gelu_fusion",
    "bias_dropout_fusion",
)  # fmt: skip


def convert_script(
    text: Text,
    given: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    choose: int | None = None,
    run: bool = False,
) -> Result:
    """Convert the script's command that has the most flags.

    given: values of script variables. environ: environment variables for those that neither `given` nor the script
    sets. choose: which configuration of a DeepSpeed JSON in the script to read, counted from 1. run: run the script and
    convert a command that it has started.
    Raises Problems if there is no Megatron-LM command, or if a flag has a wrong value.
    """
    job = Job(text)
    chosen, given = given or {}, {**job.variables, **(given or {})}
    ran = run_script(text, given) if run else Run(text, {}, [])
    script = read_script(ran.commands, given)
    from_environ = {name: value for name, value in (environ or {}).items() if name in script.unset}
    # Read again, because these variables can decide branches and contain flags.
    if from_environ:
        script = read_script(ran.commands, {**from_environ, **given})
    script.documents |= ran.documents
    notes = [*ran.problems]
    command = command_of(script)
    if not _flag_count(command) and script.variable_flags:
        what = "no command in this file has Megatron-LM flags, so the flags are read from the file's shell variables"
        notes.append(Problem(what, Place(text.name, 0, 0), severity="warning", id="migrate-flags-from-variables"))
        command = script.variable_flags
    if not _flag_count(command):
        raise Problems([_no_command(text)])
    program = _program(command)
    if program and not is_of_gpt(program.text) and (kind := kind_of_program(program.text)):
        raise Problems([_other_program(program, kind)])
    reading = _read(command, script, job, choose)
    if any(problem.severity == "error" for problem in reading.problems):
        raise Problems(reading.problems)
    others = _other_models(script.commands, command)
    if others and (where := _condition(script, command)):
        raise Problems([undecided(where, "commands that describe different models", [], script.unset)])
    if others:
        reading.to_do.append(f"TODO: {sentence(others[0])} (line {command[0].place.line}).")
    if program and not is_of_gpt(program.text):
        reading.to_do.append(f"TODO: compare with {program.text}, whose model, data and loss are not known.")
        notes.append(_unknown_program(program))
    head = [f"Converted from {os.path.basename(text.name)} by deepy migrate.", *reading.to_do]
    notes += [
        *(_from_environment(name, text) for name in sorted(from_environ)),
        *_without_effect(chosen, script, text),
    ]
    not_continued = _not_continued(script, command)
    head += [f"TODO: {sentence(problem)} (line {problem.where.line})." for problem in not_continued if problem.where]
    problems = [*notes, *others, *not_continued, *reading.problems]
    text_of_file = f"{yaml_text(reading.settings, head)}dialect: {CURRENT_DIALECT}\n"
    return new_file(text_of_file, problems=problems, to_do=head[1:])


def command_of(script: Script) -> Sequence[Word]:
    """Return the command that has the most flags, one that is only printed if no other has any."""
    command = max(script.commands, key=_flag_count, default=[])
    # Some scripts print the command that they submit elsewhere.
    if not _flag_count(command):
        command = max(script.printed, key=_flag_count, default=[])
    if not options_of(command).keys() & {"num-layers", "hidden-size"}:
        for word in [words[0] for words in script.commands if words[0].is_unknown]:
            if where := word.unknowns[0].where:  # it can be the training command
                raise Problems([undecided(where, f"the words of {word.text}", word.unknowns, script.unset)])
    return command


def _condition(script: Script, command: Sequence[Word]) -> Place | None:
    """Return the condition that decides whether a command is started, if it is not known."""
    return next((place for number, place in script.conditions.items() if script.commands[number] is command), None)


def _flag_count(words: Sequence[Word]) -> int:
    return sum(word.text.startswith("--") for word in words)


# -- the flags of the command ----------------------------------------------------------------------------------------


def _read(command: Sequence[Word], script: Script, job: Job, choose: int | None) -> Reading:
    """Read all flags of a command, those of the launcher before the program first."""
    program = index_of_program([word.text for word in command])
    reading = Reading(options_of(command[program + 1 :]))
    before = takewhile(lambda word: not word.text.startswith("--"), command[program + 1 :] if program >= 0 else ())
    leave_further_flags(reading, [*before], script.unset)
    launcher = read_launcher(reading, command[: max(program, 0)])
    if "fp16" in reading.options and "bf16" in reading.options:
        what, hint = "--fp16 and --bf16 exclude each other, and Megatron-LM refuses them together", "remove one of them"
        place = reading.options["bf16"].place
        reading.problems.append(Problem(what, place, hint, (reading.options["fp16"].place,), id="migrate-flag-value"))
    # before the other flags, some of which turn a fusion off
    reading.set_defaults(dict.fromkeys(FUSIONS, True), "Megatron-LM")
    config = reading.options.get("deepspeed-config")
    json = script.documents.get(config.text) if config else None
    options = [option for option in reading.options.values() if option is not config or json is None]
    for option in sorted(options, key=lambda option: option.name == "train-tokens"):  # it can override the others
        _read_option(reading, option)
    if json:
        _read_json(reading, json, choose)
    elif config:
        _leave_to_json(reading, {})
    if choose is not None and not json:
        what, hint = "--choose applies only to a script that writes a DeepSpeed JSON", "remove --choose"
        reading.problems.append(Problem(what, hint=hint, id="migrate-option-not-applicable"))
    reading.set_defaults(_defaults(reading), "Megatron-LM")
    reading.set_defaults(
        expert_defaults(reading), "Megatron-DeepSpeed" if is_megatron_deepspeed(reading) else "Megatron-LM"
    )
    if {"train_iters", "train_samples"}.isdisjoint({*reading.settings, *reading.to_write}):
        reading.to_do.append("TODO: set train_iters, which the script does not set.")
    if {"optimizer.params.lr", "lr"}.isdisjoint({*reading.settings, *reading.to_write}):
        reading.to_do.append("TODO: set lr, which the script does not set.")
    read_job(reading, job)
    note_hostfile(reading)
    read = [option for option in options if is_read(option.name) or "$" in option.name]
    if "launcher" in reading.settings:  # srun finds the rendezvous address itself
        launcher = [option for option in launcher if option.name != "master-addr"]
    reading.problems += unset_variables([*launcher, *read], script.unset)
    return reading


def _read_option(reading: Reading, option: Option) -> None:
    names = parameters_of(option.name)
    if not is_read(option.name) and "$" not in option.name:
        return _leave_unread(reading, option)
    if not option.is_known:
        for name in names:
            reading.note_to_write(option, name)
        if not names:
            reading.to_do.append(f"TODO: set the parameter for {option}; the script does not contain the value.")
        return
    if option.name != "deepspeed-config":
        option = without_remarks(reading, option)
        if option.is_placeholder:
            return leave_placeholder(reading, option, names)
        if not option.values and not is_switch(option.name):
            what, hint = f"--{option.name} has no value", "add a value, or remove the flag"
            missing = Problem(what, option.place, hint, id="migrate-flag-without-value", about=tuple(names))
            return reading.problems.append(missing)
    read_flag(reading, option)


def _leave_unread(reading: Reading, option: Option) -> None:
    """Warn why a flag has no counterpart, or suggest the flag it may be a misspelling of."""
    flags = {*SPECIAL, *(flag.lstrip("!") for flag in by_flag())}
    # A pattern such as `log-*` also matches a misspelling of a flag that is read.
    if reason(option.name) and (is_listed(option.name) or not close_matches(option.name, flags, alike=0.93)):
        reading.leave_out(option)
        return
    other_names = {*OLD_NAMES, *(name.replace("_", "-") for name in REGISTRY.parameters if "." not in name)}
    similar = [*close_matches(option.name, other_names, most=1, alike=0.9), *close_matches(option.name, flags)]
    # A flag that the command has as well is a candidate only if it is very similar.
    meant = [
        flag
        for flag in dict.fromkeys(similar)
        if flag not in reading.options or close_matches(option.name, [flag], alike=0.85)
    ]
    hint = f"did you mean {' or '.join(f'--{flag}' for flag in meant)}?" if meant else ""
    what = f"{option} is not a Megatron-LM flag (as of 2026) and is left out"
    reading.note_left_out(option, "it is not a Megatron-LM flag")
    reading.warn("migrate-unknown-flag", what, option.place, hint)


def _read_json(reading: Reading, text: Text, choose: int | None) -> None:
    """Add the settings of DeepSpeed's JSON, which override the flags because DeepSpeed reads the JSON only."""
    settings, places, block = _settings_of_json(text, choose)
    reading.problems += block.warnings
    reading.to_do += block.to_do
    reading.to_write.update(block.removed)
    if contradiction := _other_precision(reading, settings, places):
        reading.problems.append(contradiction)
        return
    _leave_to_json(reading, settings)
    if "deepspeed" in reading.options:
        absent = absent_settings(yaml_text(settings), ASSUMED)
        settings = {name: each for name, each in absent.items() if name not in block.removed} | settings
    for name, setting in settings.items():
        flag = reading.settings.get(name)
        if flag and flag.value != setting.value:
            what = (
                f"{name} is {flag.value} in the flags and {setting.value} in DeepSpeed's JSON, which takes precedence"
            )
            hint = f"if the flag's value is right, set {name} in the new file"
            reading.warn("migrate-flag-and-json-differ", what, places.get(name), hint, [name])
        reading.settings[name] = setting


def _other_precision(reading: Reading, settings: Mapping[str, Setting], places: Mapping[str, Place]) -> Problem | None:
    """Return a problem if a flag and the JSON enable different precisions."""
    for flag, key in (("fp16", "bf16.enabled"), ("bf16", "fp16.enabled")):
        if flag in reading.options and key in settings and settings[key].value is True:
            what = f"--{flag} and {key} of DeepSpeed's JSON exclude each other"
            also = tuple(filter(None, [places.get(key)]))
            place = reading.options[flag].place
            return Problem(what, place, "remove one of them", also, id="migrate-flag-value", about=("precision",))
    return None


def _leave_to_json(reading: Reading, settings: Mapping[str, Setting]) -> None:
    """Leave out what only flags set of that which DeepSpeed reads from its JSON. settings: those of the JSON."""
    for flag, name in IN_JSON_ONLY.items() if "deepspeed" in reading.options else ():
        if flag in reading.options and name in reading.settings and name not in settings:
            del reading.settings[name]
            reading.leave_out(reading.options[flag], "with --deepspeed, DeepSpeed reads this from its JSON only")


def _defaults(reading: Reading) -> dict[str, Any]:
    """Return Megatron-LM's defaults that differ from this dialect's, given these flags."""
    defaults = dict(DEFAULTS)
    for (flag, value), settings in DEFAULTS_WITH.items():
        if reading.text(flag).lower() == value.lower():
            defaults |= settings
    positions = reading.settings.get("pos_emb")
    return defaults | ({"rope_fusion": True} if positions and positions.value == "rotary" else {})


def _program(command: Sequence[Word]) -> Word | None:
    """Return the program of a command; None for a file that contains only flags."""
    index = index_of_program([word.text for word in command])
    return command[index] if index >= 0 else None


# -- problems --------------------------------------------------------------------------------------------------------


def _other_program(program: Word, kind: str) -> Problem:
    what = f"{program.text} {kind}, and deepy trains GPTs"
    hint = "migrate a script that starts pretrain_gpt.py"
    return Problem(what, program.place, hint, id="migrate-other-program")


def _unknown_program(program: Word) -> Problem:
    what = f"{program.text} is not a program of Megatron-LM that trains a GPT; its flags are read as if it were"
    hint = "compare the program's model, data and loss with those of pretrain_gpt.py"
    return Problem(what, program.place, hint, severity="warning", id="migrate-other-program")


def _no_command(text: Text) -> Problem:
    what = "this file contains no Megatron-LM command"
    hint = "migrate a file that contains a command with flags such as --num-layers 24"
    return Problem(what, Place(text.name, 0, 0), hint, id="migrate-no-command")


def _from_environment(name: str, text: Text) -> Problem:
    what = f"the value of ${name} is taken from the environment"
    hint = f"add --var {name}=VALUE to use a different value"
    return Problem(what, Place(text.name, 0, 0), hint, severity="warning", id="migrate-variable-from-environment")


def _without_effect(chosen: Mapping[str, str], script: Script, text: Text) -> Iterator[Problem]:
    """Warn about each `--var` that the script overwrites or does not contain."""
    for name, value in chosen.items():
        what, where = f"--var {name}={value} has no effect: ", Place(text.name, 0, 0)
        if name in script.overwritten:
            what, where = f"{what}the script itself sets {name}", script.overwritten[name]
        elif re.search(rf"\b{re.escape(name)}\b", text.text):
            continue
        else:
            what += f"the script has no variable {name}"
        hint = f"remove --var {name}={value}, or change the script"
        yield Problem(what, where, hint, severity="warning", id="migrate-variable-without-effect")


def _other_models(commands: Sequence[Sequence[Word]], chosen: Sequence[Word]) -> list[Problem]:
    """Warn about other commands that describe a model. Commands with the same flags, as after `echo`, do not count."""
    others = [words for words in commands if "num-layers" in options_of(words) and _values(words) != _values(chosen)]
    if not others:
        return []
    what = f"{len(others) + 1} commands describe a model; only this command is read, because it has the most flags"
    also = tuple(words[0].place for words in others)
    hint = "to convert another command, copy it into a separate script and migrate that script"
    return [Problem(what, chosen[0].place, hint, also, "warning", id="migrate-several-commands")]


def _not_continued(script: Script, chosen: Sequence[Word]) -> list[Problem]:
    """Warn about lines of flags that are commands of their own, because the line above does not continue."""
    return [
        Problem(
            f"{words[0].text} starts a separate command, so its flags are left out",
            words[0].place,
            "end the line above with a `\\` and no space after it, or, if that line is a comment, delete the line; "
            "then migrate again",
            severity="warning",
            id="migrate-line-not-continued",
        )
        for words in script.flag_lines
        if words is not chosen
    ]


def _values(words: Sequence[Word]) -> dict[str, list[str]]:
    return {name: [word.text for word in option.values] for name, option in options_of(words).items()}


def _settings_of_json(text: Text, number: int | None) -> tuple[dict[str, Setting], dict[str, Place], Block]:
    """Return the settings of a DeepSpeed JSON, the place of each, and what was read. Raises Problems.

    number: which of several configurations in it to read, counted from 1.
    """
    offered = versions([without_placeholders(block) for block in blocks(text)])
    if not offered:
        return {}, {}, Block(nodes.Mapping([]))
    version = chosen(offered, number, text.name)
    settings, _ = settings_of(version)
    places = {name: value.source.where for name, value in version.draft.values.items() if value.source.where}
    return settings, places, version.block
