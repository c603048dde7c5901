"""Command-line options shared by several commands, and those of a launch."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from typing import Any, NoReturn

from neoxargs.base.problems import Problem, Problems, did_you_mean, listed

#: GPT-NeoX's options, `--prompt` and `--restarts`; each is short for a `--set` of the parameter `key` (default: the
#: same name). Those that only one shipped script reads are not in the help of the others.
NEOX_OPTIONS: dict[str, dict[str, Any]] = {
    "wandb_group": {"metavar": "NAME"},
    "wandb_run_name": {"metavar": "NAME"},
    "wandb_team": {"metavar": "NAME"},
    "eval_tasks": {"metavar": "TASK", "nargs": "+"},
    "iteration": {"metavar": "N"},
    "eval_results_prefix": {"metavar": "PREFIX", "read_by": "eval.py"},
    "hostfile": {"metavar": "FILE", "short": "-H"},
    "sample_input_file": {"metavar": "FILE", "short": "-i", "read_by": "generate.py"},
    "sample_output_file": {"metavar": "FILE", "short": "-o", "read_by": "generate.py"},
    "autotuning": {"metavar": "tune|run", "key": "autotuning_run", "read_by": "train.py"},
    "prompt": {"metavar": "TEXT", "read_by": "generate.py"},
    "restarts": {"metavar": "N"},
}


def make_parser(command: str, description: str, **settings: Any) -> argparse.ArgumentParser:
    return Parser(prog=f"deepy {command}", description=description, allow_abbrev=False, **settings)


class Parser(argparse.ArgumentParser):
    """An argument parser that says what to write instead of an unknown option."""

    def error(self, message: str) -> NoReturn:
        _, found, words = message.partition("unrecognized arguments: ")
        given = re.search(r"(?:^|\s)(-[^\s=]*)(?:=|\s+(?!-))?(\S*)", words) if found else None
        hint = self._instead_of(given[1], given[2] or "VALUE") if given else ""
        super().error(f"{message}; {hint}" if hint else message)

    def _instead_of(self, option: str, value: str) -> str:
        """Return a hint for an option that is a parameter, or similar to an option of the command."""
        from neoxargs.registry import REGISTRY, normal

        dashed = option.replace("_", "-")
        if dashed in self._option_string_actions:
            return f"write {dashed}"
        name = normal(option.lstrip("-"))
        if REGISTRY.find(name) and "--set" in self._option_string_actions:
            return f"write --set {shlex.quote(f'{name}={value}')}"
        return did_you_mean(dashed, self._option_string_actions)


def parse(parser: argparse.ArgumentParser, words: list[str], installed: bool = True) -> argparse.Namespace:
    """Parse the options of a command and load plugins, so that the registry contains their parameters afterwards."""
    parser.add_argument(
        "--plugin", metavar="MODULE", action="append", default=[], help="import a plugin module (repeatable)"
    )
    # intermixed: GPT-NeoX accepts options between files, as in `small -d configs local_setup`
    options = parser.parse_intermixed_args(words[1:])
    from neoxargs.registry import plugins

    plugins.load([*(plugins.installed() if installed else ()), *options.plugin])
    if "set" in options:
        _refuse_stray_values(options.files)
    return options


def _refuse_stray_values(files: list[str]) -> None:
    """Raise Problems for `--set a=1 b=2`, where argparse takes `b=2` for a file."""
    values = [word for word in files if "=" in word and not os.path.exists(word)]
    if not values:
        return
    from neoxargs.registry import REGISTRY, normal

    if any(REGISTRY.find(normal(word.partition("=")[0])) for word in values):
        are = "is not a file" if len(values) == 1 else "are not files"
        what = f"{listed(values, 'and')} {are}; each --set takes one KEY=VALUE"
        hint = f"write {' '.join(f'--set {shlex.quote(word)}' for word in values)}"
        raise Problems([Problem(what, hint=hint, id="set-takes-one-value")])


def strip_key_dashes(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Return the words with the leading dashes of the key removed: `explain --num-layers` is `explain num-layers`."""
    key, *rest = words[1:] or [""]
    # From the help text, because argparse has no public list of options.
    is_option = key.partition("=")[0] in re.findall(r"--?[\w-]+", f"{parser.format_help()} --plugin")
    return words if is_option or not key else [words[0], key.lstrip("-").partition("=")[0], *rest]


def launch_parser(script: str) -> argparse.ArgumentParser:
    from neoxargs.launch.output.dry_run import FORMS

    parser = make_parser(script, f"Launch {script} on every rank, configured by one or more YAML files.")
    add_files(parser)
    add_json(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print all values and the abbreviated command, then exit"
    )
    parser.add_argument(
        "--check-hosts", action="store_true", help="check that every host has what the run needs, then exit"
    )
    parser.add_argument(
        "--emit", choices=FORMS, help="print the configuration or the launch command in this format, then exit"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="assume GPUs of this type, such as A100-40GB, if nvidia-smi is not available"
    )
    parser.add_argument(
        "--force", action="store_true", help="start even if the plan predicts that memory is insufficient"
    )
    parser.add_argument(
        "--break-lock", action="store_true", help="start even if another run seems to be writing to run_dir or save"
    )
    add_neox_options(parser, script)
    return parser


def add_neox_options(parser: argparse.ArgumentParser, script: str, with_help: bool = True) -> None:
    """Add `NEOX_OPTIONS`. with_help: describe them, for which the sources of the registry are parsed."""
    group = parser.add_argument_group("GPT-NeoX options (each is short for a --set option)")
    for name, settings in NEOX_OPTIONS.items():
        names = [word for word in (settings.get("short"), f"--{name}") if word]
        takes = {"metavar": settings["metavar"], "nargs": settings.get("nargs")}
        text = _neox_help(name, os.path.basename(script)) if with_help else ""
        group.add_argument(*names, dest=f"neox_{name}", help=text, **takes)


def _neox_help(name: str, script: str) -> str:
    from neoxargs.registry import REGISTRY

    settings, shipped = NEOX_OPTIONS[name], {each.get("read_by") for each in NEOX_OPTIONS.values()}
    if script in shipped and settings.get("read_by", script) != script:
        return argparse.SUPPRESS
    parameter = REGISTRY.find(settings.get("key", name))
    return parameter.brief.replace("`", "").replace("%", "%%") if parameter else ""


def neox_overrides(options: argparse.Namespace) -> list[str]:
    given = {name: getattr(options, f"neox_{name}") for name in NEOX_OPTIONS}
    return [_as_set(name, value) for name, value in given.items() if value is not None]


def _as_set(name: str, value: Any) -> str:
    # a JSON string is also a YAML string, whatever characters it contains
    text = value if name in ("iteration", "restarts") else json.dumps(value, ensure_ascii=False)
    return f"{NEOX_OPTIONS[name].get('key', name)}={text}"


def add_files(parser: argparse.ArgumentParser, nargs: str = "+") -> None:
    add = parser.add_argument
    settings: dict[str, Any] = {"default": []} if nargs == "*" else {}  # without a default, argparse would require them
    add(
        "files",
        metavar="FILE",
        nargs=nargs,
        help="YAML files to merge; .yml may be omitted",
        **settings,
    )
    add("-d", "--conf_dir", "--conf-dir", metavar="DIR", help="look for the files in DIR first")
    add("--set", metavar="KEY=VALUE", action="append", default=[], help="override a value (repeatable)")
    add("--gpus", metavar="N", type=gpu_count, help="assume N GPUs instead of those on this machine")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def gpu_count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GPUs; write a whole number of at least 1")
    return int(text)
