"""What is written and changes nothing, and why: parameters without any effect, and those that others switch off."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from neoxargs.problems import Problem
from neoxargs.registry import REGISTRY, Parameter
from neoxargs.resolve.config import Config
from neoxargs.resolve.trainer_support.switched_off import idle
from neoxargs.resolve.yaml.nodes import node_of, shown

#: Old files write these beside the switch that counts; where both say the same, nothing is lost.
ECHOES = {"fp16.fp16": "fp16.enabled", "bf16.bf16": "bf16.enabled"}


def without_effect(config: Config, refused: Collection[str]) -> Iterator[Problem]:
    """A warning for each reason, at the first line, unless what is written only repeats defaults.

    refused: parameters that have been told to be not built; what belongs to them need not be told as well.
    """
    groups = {REGISTRY.parameters[name].group for name in refused}
    told = [
        parameter
        for parameter in map(REGISTRY.parameters.__getitem__, config.values)
        if _is_set(parameter, config) and not _is_told(parameter, groups, config)
    ]
    inert = [parameter for parameter in told if parameter.effect == "none"]
    reasons: dict[tuple[str, str], list[str]] = {}
    for parameter in told:
        if parameter.effect not in ("none", "not built") and (row := idle(config, parameter.name)):
            reasons.setdefault((row.because, row.instead), []).append(parameter.name)
    for parameter in inert:
        yield _warning(config, [parameter.name], parameter.no_effect_reason)
    for (because, instead), names in reasons.items():
        yield _warning(config, names, because, instead)


def _warning(config: Config, names: list[str], because: str, instead: str = "") -> Problem:
    first, *others = names
    values = " and ".join(f"{name} ({shown(node_of(config.get(name)))})" for name in names)
    what = f"{values} {'have' if others else 'has'} no effect: {because}"
    also = tuple(place for place in map(config.place, others) if place)
    out = f"leave {' and '.join(names)} out"
    return Problem(what, config.place(first), f"{instead}, or {out}" if instead else out, also, "warning")


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
