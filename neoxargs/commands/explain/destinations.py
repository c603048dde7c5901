"""The receivers of a value in a run, with the value in the form in which each of them gets it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from neoxargs.base.problems import Problems, listed
from neoxargs.config.config import Config
from neoxargs.registry import Parameter
from neoxargs.targets import deepspeed, neox_compat
from neoxargs.targets.megatron import megatron_flags

SAME_DEFAULT = "not sent, because DeepSpeed has the same default"


def destinations(parameter: Parameter, config: Config) -> list[str]:
    """Return one line per receiver. A value that the receiver has as its default is not sent."""
    return [*_launcher(parameter, config), *_engine(parameter, config), *_ranks(parameter, config),
            *_megatron(parameter, config)]  # fmt: skip


def _launcher(parameter: Parameter, config: Config) -> Iterator[str]:
    if "runner" in parameter.to:
        flags = _with_values(deepspeed.runner_flags(config), parameter.name)
        yield f"launcher: {flags}" if flags else f"launcher: {SAME_DEFAULT}"


def _engine(parameter: Parameter, config: Config) -> Iterator[str]:
    if "deepspeed" in parameter.to:
        value = _value_at(deepspeed.deepspeed_json(config), parameter.name)
        sent = f'"{parameter.name}": {json.dumps(value)}'
        yield f"DeepSpeed's JSON: {SAME_DEFAULT if value is None else sent}"


def _ranks(parameter: Parameter, config: Config) -> Iterator[str]:
    if not parameter.to:
        return
    values = {"--megatron_config": neox_compat.neox_values(config), "--deepy_config": neox_compat.extra_values(config)}
    for option, tree in values.items():
        value = tree.get(parameter.name, _value_at(tree, parameter.name))
        if value is not None:
            yield f'each rank: {option} "{parameter.name}": {json.dumps(value)}'


def _megatron(parameter: Parameter, config: Config) -> Iterator[str]:
    if not parameter.megatron:
        return
    try:
        flags = _with_values(megatron_flags(config), parameter.megatron.removeprefix("!"))
    except Problems as refused:
        names = dict.fromkeys(problem.about[0] for problem in refused.problems if problem.about)
        yield f"--emit megatron: refused, because Megatron-LM does not support this run's {listed(names, 'and')}"
        return
    yield f"--emit megatron: {flags}" if flags else "--emit megatron: no flag; Megatron-LM has the same default"


def _with_values(words: list[str], name: str) -> str:
    """Return the flag `--name` of a command line together with its values, or ''."""
    start = next((i for i, word in enumerate(words) if word.partition("=")[0] == f"--{name}"), None)
    if start is None:
        return ""
    end = next((i for i in range(start + 1, len(words)) if words[i].startswith("--")), len(words))
    return " ".join(words[start:end])


def _value_at(tree: dict[str, Any], name: str) -> Any:
    """Return the value at a dotted name in nested dictionaries, or None."""
    value: Any = tree
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
