"""Warnings about parameters that are set but have no effect, and why.

There is no warning if the user disabled a parameter's section explicitly (`fp16: {enabled: false}`,
`checkpoint_activations: false`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from neoxargs.base.problems import Problem, listed
from neoxargs.base.record import replace
from neoxargs.config.config import Config
from neoxargs.registry import REGISTRY, Parameter
from neoxargs.resolve.effects.switched_off import switched_off_by
from neoxargs.resolve.yaml.nodes import format_node, node_of

#: Parameters that old files set in addition to the switch that train.py reads; no warning if both have the same value.
REPEATED_SWITCHES = {"fp16.fp16": "fp16.enabled", "bf16.bf16": "bf16.enabled"}


def no_effect_warnings(config: Config, refused: Collection[str]) -> Iterator[Problem]:
    """Yield one warning per reason, for parameters that are set to a value other than their default.

    refused: parameters reported as not supported; parameters of the same group are then not reported.
    """
    groups = {REGISTRY.parameters[name].group for name in refused}
    written = [
        parameter
        for parameter in map(REGISTRY.parameters.__getitem__, config.values)
        if parameter.name not in config.broken
        and _is_set(parameter, config)
        and not _is_reported(parameter, groups, config)
    ]
    reasons: dict[tuple[str, str], list[str]] = {}
    for parameter in written:
        if parameter.effect == "none" and parameter.derived:  # computed from other parameters, not what is set
            what = f"{parameter.name} has no effect: {parameter.no_effect_reason}"
            yield replace(no_effect(config, [parameter.name], parameter.no_effect_reason), what=what)
        elif parameter.effect == "none":
            reasons.setdefault((parameter.no_effect_reason, ""), []).append(parameter.name)
    for parameter in written:
        if parameter.effect not in ("none", "not built") and (row := switched_off_by(config, parameter.name)):
            reasons.setdefault((row.reason, row.instead), []).append(parameter.name)
    for (reason, instead), names in reasons.items():
        yield no_effect(config, names, reason, instead)


def no_effect(config: Config, names: list[str], reason: str, instead: str = "") -> Problem:
    """Return a warning about parameters that are set. reason: worded for one of them."""
    first, *others = names
    values = listed((f"{name} ({format_node(node_of(config.get(name)))})" for name in names), "and")
    if others:
        reason = re.sub(r"\bit\b", "them", reason.replace("it is", "they are"))
    what = f"{values} {'have' if others else 'has'} no effect: {reason}"
    also = tuple(place for place in map(config.place, others) if place)
    out = f"remove {listed(names, 'and')}"
    hint = f"{instead}, or {out}" if instead else out
    return Problem(what, config.place(first), hint, also, "warning", id="no-effect", about=tuple(names))


def differs_from_default(name: str, config: Config) -> bool:
    """Whether a parameter is set to another value than its default."""
    return name not in config.broken and _is_set(REGISTRY.parameters[name], config)


def _is_set(parameter: Parameter, config: Config) -> bool:
    name, value = parameter.name, config.get(parameter.name)
    repeated = REPEATED_SWITCHES.get(name)
    if repeated and (repeated in config.broken or value == config.get(repeated)):
        return False
    return config.is_set(name) and value != parameter.default


def _is_reported(parameter: Parameter, refused: Collection[type], config: Config) -> bool:
    """True if its group or section is refused, or explicitly disabled by the user."""
    section = parameter.group.section
    above = [group.section for group in REGISTRY.groups if group in refused and group.section]
    if parameter.group in refused or any(section.startswith(f"{name}.") for name in above):
        return True
    # DeepSpeed has the switch of a compression technique one section below.
    switches = (f"{section}.enabled", f"{section}.shared_parameters.enabled") if section else ()
    return any(switch in config.broken or (config.is_set(switch) and not config.get(switch)) for switch in switches)
