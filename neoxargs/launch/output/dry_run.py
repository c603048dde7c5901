"""The launch as the receiving programs see it: `--dry-run` prints everything for a person, `--emit` one form of it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from neoxargs.base.record import replace
from neoxargs.config.config import Config
from neoxargs.hosts import environment
from neoxargs.hosts.hosts import Resources
from neoxargs.launch.command.command import Command, runner_flags
from neoxargs.launch.start.prepare import data_command
from neoxargs.runs.launcher import launcher_of
from neoxargs.runs.rank_grid import compact_numbers
from neoxargs.targets import deepspeed, megatron, neox_compat, ranks
from neoxargs.targets.wire_format import decode

Form = Literal["command", "runner", "deepspeed", "megatron", "sbatch"]
FORMS: tuple[Form, ...] = get_args(Form)
#: Characters of a decoded argument that is shown in place of its base64 text; a longer one has a placeholder.
MAX_DECODED = 80
#: Hosts that are listed one by one.
MAX_HOSTS = 16


def emit(form: Form, config: Config, resources: Resources) -> str:
    """Return one form: flags as a line for a shell, or the configuration of DeepSpeed as JSON."""
    if form == "deepspeed":
        return pretty_json(deepspeed.deepspeed_json(config))
    flags = megatron.megatron_flags(config) if form == "megatron" else runner_flags(config, resources)
    return shlex.join(flags)


def dry_run(config: Config, resources: Resources, command: Command) -> str:
    """Return a readable description of a launch: hosts, payloads, environment and the abbreviated command."""
    launcher = launcher_of(config, resources)
    variables = environment.variables(launcher, resources.remote, os.environ, command.environment)
    values = ranks.train_values(config)
    # Only the names of the configuration files, not their texts.
    values |= {name: list(values[name]) for name in ("config_files",) if name in values}
    abbreviated = replace(command, words=tuple(map(_abbreviate, command.words)))
    parts = {
        "Ranks on each host": "\n".join(_ranks_of_hosts(resources)),
        "DeepSpeed's JSON": pretty_json(deepspeed.deepspeed_json(config)),
        "Values that every rank's script receives": pretty_json(values),
        "Command that runs before the ranks start": shlex.join(data_command(config)),
        "Environment of the ranks": environment.table(variables),
        "Command (base64 arguments are shortened to <base64: ...>; --emit command prints the full command)": str(
            abbreviated
        ),
    }
    return "\n\n".join(f"# {title}\n{text}" for title, text in parts.items() if text)


def _ranks_of_hosts(resources: Resources) -> Iterator[str]:
    """Return a line per host if there are several; DeepSpeed's launcher numbers the ranks in this order."""
    hosts, first = resources.hosts, 0
    width = max(map(len, hosts))
    for number, (host, slots) in enumerate(hosts.items()):
        if len(hosts) > 1 and number < MAX_HOSTS:
            devices = f" on GPU {compact_numbers(slots)}" if resources.device == "cuda" else ""
            yield f"{host.ljust(width)}  rank {compact_numbers(range(first, first + len(slots)))}{devices}"
        first += len(slots)
    if len(hosts) > MAX_HOSTS:
        yield f"... {len(hosts):,} hosts in total"


def _abbreviate(word: str) -> str:
    """Replace an argument in base64 by a placeholder with its JSON or, if that is long, the size of the JSON."""
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    try:
        content = json.dumps(decode(value))
    except ValueError:
        return word
    content = content if len(content) <= MAX_DECODED else f"{len(content):,} bytes of JSON"
    return f"{option}{equals}<base64: {content}>"


def to_json(config: Config, command: Command) -> dict[str, Any]:
    """Return the launch for a program (`--dry-run --json`)."""
    return {
        "command": list(command.words),
        "environment": dict(command.environment),
        "without": list(command.without),
        "data_command": data_command(config),
        "deepspeed_config": deepspeed.deepspeed_json(config),
        "megatron_config": neox_compat.neox_values(config),
        "deepy_config": neox_compat.extra_values(config),
    }


def pretty_json(values: Mapping[str, Any], margin: str = "") -> str:
    """Format as JSON with one line per key; a list stays on the line of its key."""
    inner = margin + "  "
    lines = [
        f"{inner}{json.dumps(key)}: {pretty_json(value, inner) if isinstance(value, dict) else json.dumps(value)}"
        for key, value in values.items()
    ]
    return "{\n" + ",\n".join(lines) + f"\n{margin}}}" if lines else "{}"
