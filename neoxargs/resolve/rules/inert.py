"""What is written and changes nothing: parameters that the registry declares to have no effect, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from neoxargs.problems import Problem
from neoxargs.registry import REGISTRY, Parameter
from neoxargs.resolve.config import Config
from neoxargs.resolve.nodes import node_of, shown

#: Old files write these beside the switch that counts; where both say the same, nothing is lost.
ECHOES = {"fp16.fp16": "fp16.enabled", "bf16.bf16": "bf16.enabled"}


def without_effect(config: Config, refused: Collection[str]) -> Iterator[Problem]:
    """A warning for each, at its line, unless it only repeats the default.

    refused: parameters that have been told to be not built; what belongs to them need not be told as well.
    """
    groups = {REGISTRY.parameters[name].group for name in refused}
    for name in config.values:
        parameter = REGISTRY.parameters[name]
        if parameter.effect == "none" and _is_set(parameter, config) and not _is_told(parameter, groups, config):
            what = f"{name} ({shown(node_of(config.get(name)))}) has no effect: {parameter.because}"
            yield Problem(what, config.place(name), f"leave {name} out", severity="warning")


def _is_set(parameter: Parameter, config: Config) -> bool:
    name, value = parameter.name, config.get(parameter.name)
    if name in ECHOES and value == config.get(ECHOES[name]):
        return False
    return config.written(name) and value != parameter.default


def _is_told(parameter: Parameter, refused: Collection[type], config: Config) -> bool:
    """Is its group or section refused, or switched off in so many words?"""
    section = parameter.group.section
    above = [group.section for group in REGISTRY.groups if group in refused and group.section]
    if parameter.group in refused or any(section.startswith(f"{name}.") for name in above):
        return True
    switch = f"{section}.enabled"
    return bool(section) and config.written(switch) and not config.get(switch)
