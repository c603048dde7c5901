"""The options of a launch, and those that `check` shares with it."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from neoxargs.base.options import add_files, add_json, add_versions
from neoxargs.registry import REGISTRY

#: GPT-NeoX's options, `--prompt`, `--chat` and `--restarts`; each is short for a `--set` of the parameter `key`
#: (default: the same name). Those that only one shipped script reads are not in the help of the others.
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
    "chat": {"const": "chat", "key": "text_gen_type", "help": "talk to a chat model", "read_by": "generate.py"},
    "chat_template": {"metavar": "TEMPLATE", "read_by": "generate.py"},
    "restarts": {"metavar": "N"},
}


def add_arguments(parser: argparse.ArgumentParser, script: str) -> None:
    """Add the options of a launch of `script`."""
    from neoxargs.launch.output.dry_run import FORMS

    add_files(parser)
    add_json(parser)
    add_versions(parser)
    add = parser.add_argument
    add("--dry-run", action="store_true", help="print all values and the abbreviated command, then exit")
    add("--check-hosts", action="store_true", help="check that every host has what the run needs, then exit")
    add("--emit", choices=FORMS, help="print the configuration or the launch command in this format, then exit")
    device = "assume GPUs of this type, such as A100-40GB, if nvidia-smi is not available"
    add("--device", metavar="NAME", help=device)
    add("--force", action="store_true", help="start even if the plan predicts that memory is insufficient")
    add("--break-lock", action="store_true", help="start even if another run seems to be writing to run_dir or save")
    add_neox_options(parser, script)


def add_neox_options(parser: argparse.ArgumentParser, script: str, with_help: bool = True) -> None:
    """Add `NEOX_OPTIONS`. with_help: describe them, for which the sources of the registry are parsed."""
    group = parser.add_argument_group("GPT-NeoX options (each is short for a --set option)")
    for name, settings in NEOX_OPTIONS.items():
        names = [word for word in (settings.get("short"), f"--{name}") if word]
        takes: dict[str, Any] = {key: settings[key] for key in ("metavar", "nargs", "const") if key in settings}
        takes |= {"action": "store_const"} if "const" in settings else {}
        text = _neox_help(name, os.path.basename(script)) if with_help else ""
        group.add_argument(*names, dest=f"neox_{name}", help=text, **takes)


def _neox_help(name: str, script: str) -> str:
    settings, shipped = NEOX_OPTIONS[name], {each.get("read_by") for each in NEOX_OPTIONS.values()}
    if script in shipped and settings.get("read_by", script) != script:
        return argparse.SUPPRESS
    if "help" in settings:
        return str(settings["help"])
    parameter = REGISTRY.find(settings.get("key", name))
    return parameter.brief.replace("`", "").replace("%", "%%") if parameter else ""


def neox_overrides(options: argparse.Namespace) -> list[str]:
    overrides = []
    for name, settings in NEOX_OPTIONS.items():
        if (value := getattr(options, f"neox_{name}")) is not None:
            # a JSON string is also a YAML string, whatever characters it contains
            text = value if name in ("iteration", "restarts") else json.dumps(value, ensure_ascii=False)
            overrides.append(f"{settings.get('key', name)}={text}")
    return overrides
