"""`deepy explain KEY [FILE ...]`: what a parameter means, where it goes, what it hangs on, and its value here."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from neoxargs.launch.settle import settle
from neoxargs.problems import SET, Place, Problem, Problems
from neoxargs.registry import ABSENT, REGISTRY, Parameter, normal
from neoxargs.resolve.check import expectation
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules import DERIVATIONS
from neoxargs.resolve.unknown import unknown
from neoxargs.tools.docs import default_words, destination_words

ORIGINS = {"DSL": "DeepSpeed's launcher", "DSC": "DeepSpeed's JSON", "Meg": "Megatron-LM", "NeoX": "GPT-NeoX"}
WIDTH = 96
LABEL = 14


def explain(
    key: str, files: Sequence[str], overrides: Sequence[str], directory: str | None, gpus: int | None, as_json: bool
) -> str:
    """The answer as text or JSON; raises Problems if there is no such key, or the files have problems."""
    name = normal(key)
    parameter = REGISTRY.find(name)
    config = settle(files, overrides, directory, os.environ, gpus).config if files else None
    if parameter is None:
        if name not in REGISTRY.sections:
            raise Problems([_unknown(name, key)])
        return _section(name, as_json)
    facts = dict(_facts(parameter, name, config))
    return json.dumps({"name": parameter.name, **facts}, indent=2, default=str) if as_json else _text(parameter, facts)


def _unknown(name: str, key: str) -> Problem:
    problem, _ = unknown(name, Place(SET, 1, 1, key, len(key)), key)
    return Problem(problem.what, hint=problem.hint)


def _facts(parameter: Parameter, asked: str, config: Config | None) -> Iterator[tuple[str, Any]]:
    if asked != parameter.name:
        yield "spelled", f"{asked} is another spelling of {parameter.name}"
    yield "meaning", parameter.description
    yield "type", expectation(parameter.type)
    yield "default", default_words(parameter).replace("`", "").replace("*", "")
    yield "origin", ", ".join(ORIGINS[origin] for origin in parameter.origins)
    yield "goes to", destination_words(parameter).replace("`", "") or "nobody: used by deepy alone"
    if parameter.renamed_from:
        yield "old spellings", ", ".join(parameter.renamed_from)
    yield from _relations(parameter.name)
    if config is not None:
        value = config.get(parameter.name)
        yield "value here", None if value is ABSENT else value
        yield "because", str(config.source(parameter.name))


def _relations(name: str) -> Iterator[tuple[str, str]]:
    """The rule that derives it, and what other parameters are derived from it."""
    for rule in DERIVATIONS:
        if name in rule.results:
            yield "derived", rule.sentence
    inputs = [rule for rule in DERIVATIONS if name in rule.inputs and name not in rule.results]
    results = [result for rule in inputs for result in rule.results]
    if results:
        yield "decides", ", ".join(dict.fromkeys(results))


def _text(parameter: Parameter, facts: dict[str, Any]) -> str:
    lines = [parameter.name]
    for label, value in facts.items():
        shown = value if isinstance(value, str) else json.dumps(value)
        wrapped = textwrap.wrap(shown, WIDTH - LABEL, break_on_hyphens=False) or [""]
        lines += [f"  {label.ljust(LABEL)}{wrapped[0]}", *(" " * (LABEL + 2) + part for part in wrapped[1:])]
    return "\n".join(lines)


def _section(name: str, as_json: bool) -> str:
    """A section's keys, each with the first sentence of its meaning."""
    keys = {full: p for full, p in REGISTRY.parameters.items() if full.rpartition(".")[0] == name}
    sections = [full for full in REGISTRY.sections if full.rpartition(".")[0] == name]
    if as_json:
        return json.dumps({"name": name, "keys": list(keys), "sections": sections}, indent=2)
    names = {full: full.rpartition(".")[2] for full in [*keys, *sections]}
    width = max(map(len, names.values()), default=0) + 2
    lines = [f"  {names[full].ljust(width)}{textwrap.shorten(p.description, WIDTH - width, placeholder=' …')}"
             for full, p in keys.items()]  # fmt: skip
    return "\n".join(
        [f"{name} is a section:", *lines, *(f"  {names[full].ljust(width)}a section" for full in sections)]
    )
