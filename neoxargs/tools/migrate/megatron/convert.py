"""A Megatron-LM command line, or the script around it, as our YAML; the way back of `--emit megatron`.

What each flag is stands in flags.py; what has no counterpart is listed. Where a flag is not given and Megatron-LM's
default is not ours, it is written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from neoxargs.problems import Place, Problem, Problems, near
from neoxargs.registry import normal
from neoxargs.resolve import Text
from neoxargs.tools.migrate.megatron.flags import SPECIAL, by_flag, is_read, is_switch, parameters_of, read_flag
from neoxargs.tools.migrate.megatron.heredoc import heredoc_settings
from neoxargs.tools.migrate.megatron.open_values import leave_placeholder, unset_variables, without_remarks
from neoxargs.tools.migrate.megatron.reading import Option, Reading, options_of
from neoxargs.tools.migrate.megatron.unsupported_flags import reason
from neoxargs.tools.migrate.result import Result, new_file
from neoxargs.tools.migrate.shell.script import read_script
from neoxargs.tools.migrate.shell.words import Word
from neoxargs.tools.migrate.source import TODAY
from neoxargs.tools.migrate.yaml_write import Setting, yaml_text

#: Programs that start ranks, and what their flags are here.
LAUNCHER = {
    "nproc_per_node": "num_gpus", "nnodes": "num_nodes", "master_addr": "master_addr", "master_port": "master_port",
    "num_gpus": "num_gpus", "num_nodes": "num_nodes", "hostfile": "hostfile", "include": "include",
    "exclude": "exclude",
}  # fmt: skip
#: Megatron-LM's defaults that are not this dialect's.
DEFAULTS = {"attention_dropout": 0.1, "hidden_dropout": 0.1, "weight_decay": 0.01, "warmup": 0.0}
#: The same, where a flag (perhaps with this value) is given.
DEFAULTS_WITH: dict[tuple[str, str], dict[str, Any]] = {
    ("normalization", "RMSNorm"): {"rms_norm_epsilon": 1e-5},
    ("optimizer", "sgd"): {"optimizer.params.momentum": 0.9},
    ("optimizer", "lion"): {"optimizer.params.betas": [0.95, 0.98]},
    ("optimizer", "muon"): {"optimizer.params.momentum": 0.9},
}
#: Fusions that are on unless a flag says no; that of the rotary embedding has no effect here and is not written.
FUSIONS = (
    "scaled_upper_triang_masked_softmax_fusion", "scaled_masked_softmax_fusion", "bias_gelu_fusion",
    "bias_dropout_fusion",
)  # fmt: skip


def convert_script(
    text: Text,
    given: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    choose: int | None = None,
) -> Result:
    """The YAML of a script's command; raises Problems where there is none, or a value of it is wrong.

    given: variables of the script; where neither they nor the script say one, `environ` is asked. choose: of several
    configurations in DeepSpeed's JSON, which the script writes, the one that is meant.
    """
    script = read_script(text, given)
    outside = {name: value for name, value in (environ or {}).items() if name in script.asked}
    if outside:
        script = read_script(text, {**outside, **(given or {})})
    command = max(script.commands, key=_flag_count, default=[])
    if not _flag_count(command) and script.variable_flags:
        script.notes.append(_flags_of_variables(text))
        command = script.variable_flags
    if not _flag_count(command):
        raise Problems([_no_command(text)])
    reading = _read(command, script.documents, choose)
    if any(problem.severity == "error" for problem in reading.problems):
        raise Problems(reading.problems)
    head = [f"From {os.path.basename(text.name)} by deepy migrate.", *reading.to_do]
    from_outside = [_from_outside(name, text) for name in sorted(outside)]
    problems = [*from_outside, *script.notes, *_other_runs(script.commands, command), *reading.problems]
    return new_file(f"{yaml_text(reading.settings, head)}dialect: {TODAY}\n", problems=problems)


def _flag_count(words: Sequence[Word]) -> int:
    return sum(word.text.startswith("--") for word in words)


# -- the flags of the command ----------------------------------------------------------------------------------------


def _read(command: Sequence[Word], documents: Mapping[str, Text], choose: int | None) -> Reading:
    """What the flags say, those of the program that starts ranks first."""
    script = next((i for i, word in enumerate(command) if word.text.endswith(".py")), -1)
    launcher = [option for option in options_of(command[: max(script, 0)]).values() if normal(option.name) in LAUNCHER]
    reading = Reading(options_of(command[script + 1 :]))
    for option in launcher:
        _read_launcher(reading, option)
    for name in FUSIONS:
        reading.set(name, True, "Megatron-LM's default")
    config = reading.options.get("deepspeed-config")
    json = documents.get(config.text) if config else None
    options = [option for option in reading.options.values() if option is not config or json is None]
    for option in options:
        _read_option(reading, option)
    if json:
        _read_json(reading, json, choose)
    elif choose is not None:
        what, hint = "--choose is for a script that writes DeepSpeed's JSON", "leave it out"
        reading.problems.append(Problem(what, hint=hint, id="migrate-option-without-meaning"))
    for name, value in _defaults(reading).items():
        reading.settings.setdefault(name, Setting(value, behind="Megatron-LM's default"))
    if "train_iters" not in {*reading.settings, *reading.to_write}:
        reading.to_do.append("To do: write train_iters, which the script does not say.")
    reading.problems += unset_variables([*launcher, *options])
    return reading


def _read_launcher(reading: Reading, option: Option) -> None:
    name = LAUNCHER[normal(option.name)]
    if option.is_placeholder:
        leave_placeholder(reading, option, [name])
    elif option.is_known:
        reading.set_from(option, name)


def _read_option(reading: Reading, option: Option) -> None:
    if not option.is_known:
        reading.to_do.append(f"To do: what {option} is, the script does not say.")
    elif not is_read(option.name):
        _leave_unread(reading, option)
    elif option.name == "deepspeed-config":
        read_flag(reading, option)
    else:
        _read_value(reading, without_remarks(reading, option))


def _read_value(reading: Reading, option: Option) -> None:
    if option.is_placeholder:
        leave_placeholder(reading, option, parameters_of(option.name))
    elif not option.values and not is_switch(option.name):
        what, names = f"--{option.name} has no value", tuple(parameters_of(option.name))
        reading.problems.append(Problem(what, option.place, id="migrate-flag-without-value", about=names))
    else:
        read_flag(reading, option)


def _leave_unread(reading: Reading, option: Option) -> None:
    """Say why nothing here stands for a flag, or which one may be meant."""
    if reason(option.name):
        reading.leave_out(option)
        return
    alike = near(option.name, [*SPECIAL, *(flag.lstrip("!") for flag in by_flag())])
    meant = [flag for flag in alike if flag not in reading.options or near(option.name, [flag], alike=0.85)]
    hint = f"did you mean {' or '.join(f'--{flag}' for flag in meant)}?" if meant else "it is left out"
    reading.warn("migrate-unknown-flag", f"{option} is no flag of Megatron-LM (2026)", option.place, hint)


def _read_json(reading: Reading, text: Text, choose: int | None) -> None:
    """DeepSpeed reads its own JSON, so what stands there holds where a flag says otherwise."""
    settings, places, problems = heredoc_settings(text, choose)
    reading.problems += problems
    for name, setting in settings.items():
        flag = reading.settings.get(name)
        if flag and flag.value != setting.value:
            what = f"a flag and DeepSpeed's JSON differ in {name}: {flag.value} and {setting.value}"
            hint = "DeepSpeed reads its JSON, so that is taken"
            reading.warn("migrate-flag-and-json-differ", what, places.get(name), hint, [name])
        reading.settings[name] = setting


def _defaults(reading: Reading) -> dict[str, Any]:
    """Megatron-LM's defaults that are to be written, with these flags."""
    defaults = dict(DEFAULTS)
    for (flag, value), settings in DEFAULTS_WITH.items():
        if flag in reading.options and reading.options[flag].text == value:
            defaults |= settings
    return defaults


# -- what there is to say --------------------------------------------------------------------------------------------


def _no_command(text: Text) -> Problem:
    what = "there is no command line of Megatron-LM in this file"
    hint = "a command with flags such as --num-layers 24 is looked for"
    return Problem(what, Place(text.name, 0, 0), hint, id="migrate-no-command")


def _flags_of_variables(text: Text) -> Problem:
    what = "nothing is started here with flags of Megatron-LM: those that variables hold are read"
    return Problem(what, Place(text.name, 0, 0), severity="warning", id="migrate-flags-of-variables")


def _from_outside(name: str, text: Text) -> Problem:
    what = f"${name} is taken from the environment"
    return Problem(what, Place(text.name, 0, 0), severity="warning", id="migrate-variable-from-environment")


def _other_runs(commands: Sequence[Sequence[Word]], chosen: Sequence[Word]) -> list[Problem]:
    """For a script that starts several models (not the same one twice, as `echo` before a command does)."""
    others = [words for words in commands if "num-layers" in options_of(words) and _values(words) != _values(chosen)]
    if not others:
        return []
    what = f"this is one of {len(others) + 1} commands that describe a model; it has the most flags, so it is read"
    also, hint = tuple(words[0].place for words in others), "migrate each from a script of its own"
    return [Problem(what, chosen[0].place, hint, also, "warning", id="migrate-several-commands")]


def _values(words: Sequence[Word]) -> dict[str, list[str]]:
    return {name: [word.text for word in option.values] for name, option in options_of(words).items()}
