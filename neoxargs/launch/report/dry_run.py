"""A run as the programs see it: `--dry-run` prints everything, `--emit` one of its forms."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from neoxargs.launch import environment
from neoxargs.launch.cluster.hosts import Resources
from neoxargs.launch.launchers import launcher_named
from neoxargs.launch.launchers.command import Command, runner_flags
from neoxargs.launch.prepare import data_command
from neoxargs.launch.report.rank_grid import compact_numbers
from neoxargs.launch.targets import deepspeed, megatron, neox_compat, ranks
from neoxargs.launch.targets.wire_format import decode
from neoxargs.resolve.config import Config

Form = Literal["megatron", "deepspeed", "runner", "sbatch"]
FORMS: tuple[Form, ...] = get_args(Form)
#: Letters of an encoded value that is shown as what it says; a longer one stands above the command.
MAX_SHOWN = 80
#: Machines that are shown one by one.
MAX_MACHINES = 16


def emit(form: Form, config: Config, resources: Resources) -> str:
    """One form alone: flags as a line for a shell, DeepSpeed's section as JSON."""
    if form == "deepspeed":
        return pretty_json(deepspeed.deepspeed_json(config))
    flags = megatron.megatron_flags(config) if form == "megatron" else runner_flags(config, resources)
    return shlex.join(flags)


def dry_run(config: Config, resources: Resources, command: Command, brief: bool) -> str:
    """All that would be started and what it would be told. brief: for reading, not for use."""
    launcher = launcher_named(config.runner.launcher)
    reaching = environment.variables(launcher, resources.remote, os.environ, command.environment)
    values = ranks.train_values(config)
    if brief:
        values = values | {name: list(values[name]) for name in ("config_files",) if name in values}
        command = replace(command, words=tuple(map(_decoded, command.words)))
    parts = {
        "Where the ranks are": "\n".join(_ranks_of_hosts(resources)),
        "DeepSpeed's JSON": pretty_json(deepspeed.deepspeed_json(config)),
        "What every rank's script receives": pretty_json(values),
        "Before the ranks start": shlex.join(data_command(config)),
        "Environment of the ranks": environment.table(reaching),
        "Command (… is what stands above; whole through a pipe)" if brief else "Command": str(command),
    }
    return "\n\n".join(f"# {title}\n{text}" for title, text in parts.items() if text)


def _ranks_of_hosts(resources: Resources) -> Iterator[str]:
    """Of several machines, the ranks of each; DeepSpeed's launcher and the ranks themselves count in this order."""
    hosts, first = resources.hosts, 0
    width = max(map(len, hosts))
    for number, (host, slots) in enumerate(hosts.items()):
        if len(hosts) > 1 and number < MAX_MACHINES:
            devices = f" on GPU {compact_numbers(slots)}" if resources.device == "cuda" else ""
            yield f"{host.ljust(width)}  rank {compact_numbers(range(first, first + len(slots)))}{devices}"
        first += len(slots)
    if len(hosts) > MAX_MACHINES:
        yield f"... {len(hosts):,} machines in all"


def _decoded(word: str) -> str:
    """An encoded value as what it says, if that is short."""
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    try:
        content = json.dumps(decode(value))
    except ValueError:
        return word
    return f"{option}{equals}{content if len(content) <= MAX_SHOWN else '…'}"


def to_json(config: Config, command: Command) -> dict[str, Any]:
    """The same for a program (`--dry-run --json`)."""
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
    """JSON with a line for every key; lists stay on theirs."""
    inner = margin + "  "
    lines = [
        f"{inner}{json.dumps(key)}: {pretty_json(value, inner) if isinstance(value, dict) else json.dumps(value)}"
        for key, value in values.items()
    ]
    return "{\n" + ",\n".join(lines) + f"\n{margin}}}" if lines else "{}"
