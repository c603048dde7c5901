"""A parameter: its meaning, type and default, where it goes, and with files its value there and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from neoxargs.problems import listed
from neoxargs.registry import ABSENT, REGISTRY, Parameter, plugins
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules import DERIVATIONS
from neoxargs.resolve.values.describe_type import describe_type
from neoxargs.tools.docs.parameters import default_words, destination_words, effect_words, neox_dates
from neoxargs.tools.explain import keyword_search
from neoxargs.tools.explain.destinations import destinations
from neoxargs.tools.explain.provenance import json_words, origin, reasons
from neoxargs.tools.explain.render import rows
from neoxargs.tools.migrate.deepspeed.auto import AUTO_VALUES

ORIGINS = {"DSL": "DeepSpeed's launcher", "DSC": "DeepSpeed's JSON", "Meg": "Megatron-LM", "NeoX": "GPT-NeoX"}
#: What `changes` says where the registry's own word would not do.
EFFECTS = {
    "launcher": "which processes are started, and how",
    "layout": "which rank holds what of the model",
    "engine": "what DeepSpeed's engine does",
    "schedule": "the learning rate over the run",
    "memory": "how much memory training takes",
    "log": "what is reported",
    "run": "the course of the run",
    "config": "only what is derived from it",
    "not built": "nothing: train.py refuses any value but the default",
}


def to_json(parameter: Parameter, asked: str, config: Config | None) -> dict[str, Any]:
    """For a program; asked: the name that was asked for, which may be another spelling."""
    described = dict(_described(parameter, asked, config))
    if config is not None:
        tree = described["because"]
        described |= {"because": tree.why, "from": [read.to_json() for read in tree.inputs]}
    return {"name": parameter.name, **described}


def to_text(parameter: Parameter, asked: str, config: Config | None) -> str:
    """For a person."""
    return "\n".join([parameter.name, *rows(dict(_described(parameter, asked, config)), config)])


def _described(parameter: Parameter, asked: str, config: Config | None) -> Iterator[tuple[str, Any]]:
    if asked != parameter.name and not parameter.name.endswith(f".{asked}"):
        spelling = "another spelling of" if REGISTRY.find(asked) else "another program's word for"
        yield "spelled", f"{asked} is {spelling} {parameter.name}"
        if others := keyword_search.called(asked):
            yield "also", f"{listed(others, 'and')} {'has' if len(others) == 1 else 'have'} this name"
    yield "meaning", parameter.description
    yield "type", describe_type(parameter.type)
    yield "default", default_words(parameter).replace("`", "").replace("*", "")
    yield "changes", EFFECTS.get(parameter.effect, effect_words(parameter).replace("`", ""))
    yield "origin", ", ".join(ORIGINS[origin] for origin in parameter.origins)
    if asked_years := neox_dates(asked if REGISTRY.find(asked) else parameter.name):
        yield "in GPT-NeoX", asked_years
    if parameter.replaced_by:
        yield (
            "today",
            "; ".join(f"{json_words(old)} is {_today(new)}" for old, new in parameter.replaced_by.items() if new),
        )
    yield "goes to", destination_words(parameter).replace("`", "") or "nobody: used by deepy alone"
    if parameter.name in plugins.DECLARED:
        yield "declared by", f"plugin {plugins.DECLARED[parameter.name]}"
    if parameter.aliases:
        yield "old spellings", ", ".join(parameter.aliases)
    if config is None or config.source(parameter.name).kind != "derived":
        yield from (("derived", sentence) for sentence in reasons(parameter.name))
    yield from _relations(parameter.name)
    if parameter.name in AUTO_VALUES and "DSC" in parameter.origins:
        yield "auto", f"{AUTO_VALUES[parameter.name].why}; migrate writes what is known"
    if config is not None:
        value = config.get(parameter.name)
        yield "value here", None if value is ABSENT else value
        yield "because", origin(parameter.name, config)
        yield "sent here", destinations(parameter, config)


def _today(new: Mapping[str, Any]) -> str:
    return " and ".join(f"{name}: {json_words(value)}" for name, value in new.items())


def _relations(name: str) -> Iterator[tuple[str, str]]:
    """What other parameters are derived from it."""
    inputs = [rule for rule in DERIVATIONS if name in rule.inputs and name not in rule.results]
    results = [result for rule in inputs for result in rule.results]
    if results:
        yield "decides", ", ".join(dict.fromkeys(results))
