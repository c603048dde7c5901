"""`deepy explain KEY [FILE ...]`: what a parameter means, where it goes, what it hangs on, and its value here."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from neoxargs.launch.settle import Settled, settle
from neoxargs.problems import SET, Place, Problem, Problems
from neoxargs.registry import ABSENT, REGISTRY, Parameter, normal, plugins
from neoxargs.registry.history import SEED, introduced, removed
from neoxargs.resolve.check import expectation
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules import CHECKS, DERIVATIONS
from neoxargs.resolve.rules.declare import Rule
from neoxargs.resolve.unknown import NOBODYS, unknown
from neoxargs.tools.docs import default_words, destination_words, effect_words, years
from neoxargs.tools.explain import search, whole
from neoxargs.tools.explain.origin import Origin, because, origin, sentences, shown
from neoxargs.tools.explain.sent import sent
from neoxargs.tools.migrate.auto import STANDS

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
#: Where a file stands in the place of the parameter.
FIRST = "write `explain KEY FILE`, or `explain --all FILE` for every one"
#: Where nothing has the word that was asked for.
NOWHERE = "no parameter has it in its name or description; docs/parameters.md lists all"
WIDTH = 96
LABEL = 14


def explain(
    key: str, files: Sequence[str], overrides: Sequence[str], directory: str | None, gpus: int | None, as_json: bool
) -> str:
    """The answer as text or JSON; raises Problems if there is no such key, or the files have problems."""
    name = normal(key)
    parameter = REGISTRY.find(name)
    if parameter is None and search.is_file(key):
        raise Problems([Problem(f"explain wants a parameter first, and {key} is a file", hint=FIRST)])
    settled = settle(files, overrides, directory, os.environ, gpus) if files else None
    config = settled.config if settled else None
    if parameter is None:
        if rule := next((rule for rule in (*DERIVATIONS, *CHECKS) if rule.function.__name__ == key), None):
            return _rule(rule, as_json)
        if name not in REGISTRY.sections:
            return _nearest(name, key, as_json)
        return _section(name, config, as_json)
    facts = dict(_facts(parameter, name, config))
    if not as_json:
        return _text(parameter, facts)
    if config is not None:
        facts |= {"because": facts["because"].why, "from": [read.facts() for read in facts["because"].inputs]}
    return _json({"name": parameter.name, **facts, "problems": _warnings(settled)})


def explain_all(
    files: Sequence[str], overrides: Sequence[str], directory: str | None, gpus: int | None, as_json: bool
) -> str:
    """The resolved configuration, annotated: YAML that resolves to the same, or JSON; raises Problems."""
    settled = settle(files, overrides, directory, os.environ, gpus)
    if as_json:
        return _json({"values": whole.facts(settled.config), "problems": _warnings(settled)})
    return whole.whole(settled.config).rstrip("\n")


def _json(facts: dict[str, Any]) -> str:
    return json.dumps(facts, indent=2, default=str)


def _warnings(settled: Settled | None) -> list[dict[str, Any]]:
    return [problem.facts() for problem in settled.warnings] if settled else []


def _nearest(name: str, key: str, as_json: bool) -> str:
    """What has the word in it, where no parameter is like it; raises Problems otherwise."""
    problem, _ = unknown(name, Place(SET, 1, 1, key, len(key)), key)
    if problem.hint != NOBODYS:
        raise Problems([_once(name, problem)])
    found = {} if removed(name) else search.having(name)
    if not found:
        raise Problems([_once(name, replace(problem, hint=NOWHERE))])
    if as_json:
        return _json({"name": key, "found": found})
    shown = list(found.items())[: search.MOST]
    width = max(len(name) for name, _ in shown) + 2
    lines = [f"  {name.ljust(width)}{textwrap.shorten(text, WIDTH - 30, placeholder=' …')}" for name, text in shown]
    more = [f"  and {len(found) - len(shown)} more: docs/parameters.md"] if len(found) > len(shown) else []
    return "\n".join([f"no parameter is called {key}; about it:", *lines, *more])


def _once(name: str, problem: Problem) -> Problem:
    gone = removed(name)
    had = f"GPT-NeoX had it from {introduced(name) or SEED} to {gone}; " if gone else ""
    return Problem(problem.what, hint=f"{had}{problem.hint}")


def _rule(rule: Rule, as_json: bool) -> str:
    inputs = [name for name in rule.inputs if name in REGISTRY.parameters]
    facts = {"rule": rule.sentence, "reads": inputs, "gives": list(rule.results)}
    if as_json:
        return _json({"name": rule.function.__name__, **facts})
    words = {label: value if isinstance(value, str) else ", ".join(value) for label, value in facts.items()}
    return "\n".join([rule.function.__name__, *_rows({label: text for label, text in words.items() if text})])


def _facts(parameter: Parameter, asked: str, config: Config | None) -> Iterator[tuple[str, Any]]:
    if asked != parameter.name:
        yield "spelled", f"{asked} is another spelling of {parameter.name}"
    yield "meaning", parameter.description
    yield "type", expectation(parameter.type)
    yield "default", default_words(parameter).replace("`", "").replace("*", "")
    yield "changes", EFFECTS.get(parameter.effect, effect_words(parameter).replace("`", ""))
    yield "origin", ", ".join(ORIGINS[origin] for origin in parameter.origins)
    if asked_years := years(asked):
        yield "in GPT-NeoX", asked_years
    if parameter.becomes:
        yield "today", "; ".join(f"{shown(old)} is {_today(new)}" for old, new in parameter.becomes.items() if new)
    yield "goes to", destination_words(parameter).replace("`", "") or "nobody: used by deepy alone"
    if parameter.name in plugins.DECLARED:
        yield "declared by", f"plugin {plugins.DECLARED[parameter.name]}"
    if parameter.renamed_from:
        yield "old spellings", ", ".join(parameter.renamed_from)
    if config is None or config.source(parameter.name).kind != "derived":
        yield from (("derived", sentence) for sentence in sentences(parameter.name))
    yield from _relations(parameter.name)
    if parameter.name in STANDS and "DSC" in parameter.origins:
        yield "auto", f"{STANDS[parameter.name].why}; migrate writes what is known"
    if config is not None:
        value = config.get(parameter.name)
        yield "value here", None if value is ABSENT else value
        yield "because", origin(parameter.name, config)
        yield "sent here", sent(parameter, config)


def _today(new: Mapping[str, Any]) -> str:
    return " and ".join(f"{name}: {shown(value)}" for name, value in new.items())


def _relations(name: str) -> Iterator[tuple[str, str]]:
    """What other parameters are derived from it."""
    inputs = [rule for rule in DERIVATIONS if name in rule.inputs and name not in rule.results]
    results = [result for rule in inputs for result in rule.results]
    if results:
        yield "decides", ", ".join(dict.fromkeys(results))


def _text(parameter: Parameter, facts: dict[str, Any]) -> str:
    return "\n".join([parameter.name, *_rows(facts)])


def _rows(facts: dict[str, Any]) -> Iterator[str]:
    for label, value in facts.items():
        lines = [line for text in _texts(value) for line in _wrapped(text)] or [""]
        yield f"  {label.ljust(LABEL)}{lines[0]}"
        yield from (" " * (LABEL + 2) + line for line in lines[1:])


def _texts(value: Any) -> list[str]:
    if isinstance(value, Origin):
        return [value.why, *value.lines("  ")]
    if isinstance(value, list) and all(isinstance(item, str) and ": " in item for item in value):
        return value
    return [value if isinstance(value, str) else json.dumps(value, default=str)]


def _wrapped(text: str) -> list[str]:
    indent = text[: len(text) - len(text.lstrip())]
    indent += "  " * bool(indent)
    return textwrap.wrap(text, WIDTH - LABEL, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _section(name: str, config: Config | None, as_json: bool) -> str:
    """A section's keys, each with the first sentence of its meaning, and what they are in these files."""
    keys = {full: p for full, p in REGISTRY.parameters.items() if full.rpartition(".")[0] == name}
    sections = [full for full in REGISTRY.sections if full.rpartition(".")[0] == name]
    here = (
        {full: (config.get(full), because(full, config)) for full in keys if _differs(full, config)} if config else {}
    )
    if as_json:
        values = {"values here": {full: value for full, (value, _) in here.items()}} if config else {}
        return _json({"name": name, "keys": list(keys), "sections": sections, **values})
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
