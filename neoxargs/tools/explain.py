"""`deepy explain KEY [FILE ...]`: what a parameter means, where it goes, what it hangs on, and its value here."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from neoxargs.launch import summary
from neoxargs.launch.settle import settle
from neoxargs.problems import SET, Place, Problem, Problems
from neoxargs.registry import ABSENT, REGISTRY, Parameter, normal, plugins
from neoxargs.registry.history import changes, default_at
from neoxargs.resolve.check import expectation
from neoxargs.resolve.config import Config
from neoxargs.resolve.dialect import NAMES
from neoxargs.resolve.rules import DERIVATIONS
from neoxargs.resolve.unknown import unknown
from neoxargs.tools.docs import default_words, destination_words, effect_words

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
WIDTH = 96
LABEL = 14
#: So many of the values that another was derived from are shown.
MOST_INPUTS = 6
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


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
        return _section(name, config, as_json)
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
    yield "changes", EFFECTS.get(parameter.effect, effect_words(parameter).replace("`", ""))
    yield "origin", ", ".join(ORIGINS[origin] for origin in parameter.origins)
    yield "goes to", destination_words(parameter).replace("`", "") or "nobody: used by deepy alone"
    if parameter.name in plugins.DECLARED:
        yield "declared by", f"plugin {plugins.DECLARED[parameter.name]}"
    if parameter.renamed_from:
        yield "old spellings", ", ".join(parameter.renamed_from)
    yield from _relations(parameter.name)
    if config is not None:
        value = config.get(parameter.name)
        yield "value here", None if value is ABSENT else value
        yield "because", _because(parameter.name, config)


def _because(name: str, config: Config) -> str:
    """Where the value was written, what it was derived from, or whose default it is."""
    source = config.source(name)
    if source.kind == "default" or _is_default(name, config):
        return _whose_default(name, config) or "default"
    if source.kind != "derived":
        return str(source)
    said = "" if source.text in _sentences(name) else source.text  # it stands under `derived` already
    made_of = summary.batch(config) if name in BATCH else ", ".join(_inputs(name, config))
    return f"derived: {'; '.join(filter(None, [said, made_of])) or 'from nothing that is written'}"


def _is_default(name: str, config: Config) -> bool:
    """Does a rule only repeat the default? Nothing that was written leads to it."""
    if config.dialect is None or config.place(name) is not None or config.get(name) is None:
        return False
    return bool(config.get(name) == default_at(name, config.dialect.date))


def _whose_default(name: str, config: Config) -> str:
    """`neox-2021's default; neox-2026 has 1.0` where the dialect decides, else nothing."""
    if config.dialect is None or not changes(name):
        return ""
    defaults = {dialect: default_at(name, day) for dialect, day in NAMES.items()}
    others = [f"{dialect} has {json.dumps(v)}" for dialect, v in defaults.items() if v != config.get(name)]
    return "; ".join([f"{config.dialect.name}'s default", *others])


def _sentences(name: str) -> list[str]:
    return [rule.sentence for rule in DERIVATIONS if name in rule.results]


def _inputs(name: str, config: Config) -> list[str]:
    """What a value was derived from, each with its value and where that comes from; written ones first."""
    known = [read for read in dict.fromkeys(config.source(name).inputs) if read in REGISTRY.parameters]
    known = [read for read in known if read != name and config.get(read) not in (ABSENT, None)]
    known.sort(key=lambda read: not config.written(read))
    return [_input(read, config) for read in known[:MOST_INPUTS]]


def _input(name: str, config: Config) -> str:
    source = config.source(name)
    why = str(source) if source.written else source.kind
    if source.kind == "default":
        why = _whose_default(name, config) or "default"
    return f"{name} {json.dumps(config.get(name), default=str)} ({why})"


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


def _section(name: str, config: Config | None, as_json: bool) -> str:
    """A section's keys, each with the first sentence of its meaning, and what they are in these files."""
    keys = {full: p for full, p in REGISTRY.parameters.items() if full.rpartition(".")[0] == name}
    sections = [full for full in REGISTRY.sections if full.rpartition(".")[0] == name]
    here = (
        {full: (config.get(full), _because(full, config)) for full in keys if _differs(full, config)} if config else {}
    )
    if as_json:
        shown = {"values here": {full: value for full, (value, _) in here.items()}} if config else {}
        return json.dumps({"name": name, "keys": list(keys), "sections": sections, **shown}, indent=2, default=str)
    names = {full: full.rpartition(".")[2] for full in [*keys, *sections]}
    width = max(map(len, names.values()), default=0) + 2
    lines = [f"  {names[full].ljust(width)}{textwrap.shorten(p.description, WIDTH - width, placeholder=' …')}"
             for full, p in keys.items()]  # fmt: skip
    lines += [f"  {names[full].ljust(width)}a section" for full in sections]
    return "\n".join([f"{name} is a section:", *lines, *_values(name, here, config)])


def _differs(name: str, config: Config) -> bool:
    """Is it more than a plain default?"""
    value = config.get(name)
    return config.written(name) or (value is not ABSENT and value != REGISTRY.parameters[name].default)


def _values(name: str, here: dict[str, tuple[Any, str]], config: Config | None) -> list[str]:
    if config is None:
        return []
    if not here:
        return ["", f"{name} here: nothing but defaults"]
    lines = [
        f"  {full.rpartition('.')[2]} {json.dumps(value, default=str)} ({why})" for full, (value, why) in here.items()
    ]
    return ["", f"{name} here:", *lines]
