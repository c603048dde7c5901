"""A run as the programs see it: `--dry-run` prints everything, `--emit` one of the three forms."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any, Literal, get_args

from neoxargs.launch import neox, split
from neoxargs.launch.command import Command, runner_flags
from neoxargs.launch.hosts import Resources
from neoxargs.launch.prepare import data_command
from neoxargs.resolve.config import Config

Form = Literal["megatron", "deepspeed", "runner"]
FORMS: tuple[Form, ...] = get_args(Form)


def emitted(form: Form, config: Config, resources: Resources) -> str:
    """One form alone: flags as a line for a shell, DeepSpeed's section as JSON."""
    if form == "deepspeed":
        return pretty(split.deepspeed_json(config))
    flags = split.megatron_flags(config) if form == "megatron" else runner_flags(config, resources)
    return shlex.join(flags)


def dry_run(config: Config, command: Command) -> str:
    """All that would be started and what it would be told."""
    parts = {
        "DeepSpeed's JSON": pretty(split.deepspeed_json(config)),
        "What every rank's script receives": pretty(split.train_values(config)),
        "Before the ranks start": shlex.join(data_command(config)),
        "Command": str(command),
    }
    return "\n\n".join(f"# {title}\n{text}" for title, text in parts.items() if text)


def facts(config: Config, command: Command) -> dict[str, Any]:
    """The same for a program (`--dry-run --json`)."""
    return {
        "command": list(command.words),
        "environment": dict(command.environment),
        "without": list(command.without),
        "data_command": data_command(config),
        "deepspeed_config": split.deepspeed_json(config),
        "megatron_config": neox.neox_values(config),
        "deepy_config": neox.more_values(config),
    }


def pretty(values: Mapping[str, Any], margin: str = "") -> str:
    """JSON with a line for every key; lists stay on theirs."""
    inner = margin + "  "
    lines = [
        f"{inner}{json.dumps(key)}: {pretty(value, inner) if isinstance(value, dict) else json.dumps(value)}"
        for key, value in values.items()
    ]
    return "{\n" + ",\n".join(lines) + f"\n{margin}}}" if lines else "{}"
