"""`deepy explain KEY [FILE ...]`: what a parameter means, where it goes, what it hangs on, and its value here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from neoxargs.launch.run_spec import RunSpec, resolve_run
from neoxargs.problems import SET, Place, Problem, Problems, listed
from neoxargs.registry import ABSENT, REGISTRY, Parameter, normal, plugins
from neoxargs.registry.history import SEED, introduced, removed
from neoxargs.request import Request
from neoxargs.resolve.config import Config
from neoxargs.resolve.keys.match import Key, keys_of
from neoxargs.resolve.keys.unknown import match_key, unknown_key
from neoxargs.resolve.rules import CHECKS, DERIVATIONS
from neoxargs.resolve.rules.rule import Rule
from neoxargs.resolve.values.describe_type import expectation
from neoxargs.tools.docs.parameters import default_words, destination_words, effect_words, years
from neoxargs.tools.explain import explain_all, keyword_search, section
from neoxargs.tools.explain.destinations import sent
from neoxargs.tools.explain.provenance import origin, sentences, shown
from neoxargs.tools.explain.render import rows
from neoxargs.tools.migrate.deepspeed.auto import STANDS

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


def explain(key: str, request: Request) -> str:
    """The answer as text or JSON; raises Problems if there is no such key, or the files have problems."""
    name = normal(key)
    parameter = REGISTRY.find(name)
    if parameter is None and keyword_search.is_file(key):
        raise Problems([Problem(f"explain wants a parameter first, and {key} is a file", hint=FIRST)])
    spec = resolve_run(request, os.environ) if request.files else None
    config, as_json = spec.config if spec else None, request.as_json
    if parameter is None and name in REGISTRY.sections:
        return _json(section.facts(name, config), spec) if as_json else section.text(name, config)
    if parameter is None and len(found := keyword_search.ending(name)) > 1:
        return _several(f"several parameters are called {key}:", key, found, as_json)
    parameter = parameter or next(map(REGISTRY.find, found), None)
    if parameter is None:
        if rule := next((rule for rule in (*DERIVATIONS, *CHECKS) if rule.function.__name__ == key), None):
            return _rule(rule, as_json)
        return _nearest(name, key, as_json)
    facts = dict(_facts(parameter, name, config))
    if not as_json:
        return "\n".join([parameter.name, *rows(facts, config)])
    if config is not None:
        facts |= {"because": facts["because"].why, "from": [read.facts() for read in facts["because"].inputs]}
    return _json({"name": parameter.name, **facts}, spec)


def explain_everything(request: Request) -> str:
    """The resolved configuration, annotated: YAML that resolves to the same, or JSON; raises Problems."""
    spec = resolve_run(request, os.environ)
    if request.as_json:
        return _json({"values": explain_all.facts(spec.config)}, spec)
    return explain_all.whole(spec.config).rstrip("\n")


def _json(facts: dict[str, Any], spec: RunSpec | None = None) -> str:
    warnings = [problem.to_json() for problem in spec.warnings] if spec else []
    return json.dumps({"ok": True, **facts, "problems": warnings}, indent=2, default=str)


def _nearest(name: str, key: str, as_json: bool) -> str:
    """What has the word in it, where no parameter is like it; raises Problems otherwise."""
    asked = Key(name, key, Place(SET, 1, 1, key, len(key)))
    match = match_key(asked)
    problem = replace(unknown_key(asked, match), where=None)
    retired = "" if match and match.found_by == "retired" else _in_the_past(name)
    if match or (asked.section and keys_of(asked.section)):
        raise Problems([replace(problem, hint=retired + problem.hint)])
    found = {} if removed(name) else keyword_search.having(name)
    if not found:
        raise Problems([replace(problem, hint=retired + NOWHERE)])
    return _several(f"no parameter is called {key}; about it:", key, found, as_json)


def _several(head: str, key: str, found: dict[str, str], as_json: bool) -> str:
    if as_json:
        return _json({"name": key, "found": found})
    shown = dict(list(found.items())[: keyword_search.MOST])
    more = [f"  and {len(found) - len(shown)} more: docs/parameters.md"] if len(found) > len(shown) else []
    return "\n".join([head, *section.table(shown), *more])


def _in_the_past(name: str) -> str:
    """When GPT-NeoX had a name that it dropped, a clause before the hint; empty for any other name."""
    gone = removed(name)
    return f"GPT-NeoX had it from {introduced(name) or SEED} to {gone}; " if gone else ""


def _rule(rule: Rule, as_json: bool) -> str:
    inputs = [name for name in rule.inputs if name in REGISTRY.parameters]
    facts = {"rule": rule.reason, "reads": inputs, "gives": list(rule.results)}
    if as_json:
        return _json({"name": rule.function.__name__, **facts})
    words = {label: value if isinstance(value, str) else ", ".join(value) for label, value in facts.items()}
    return "\n".join([rule.function.__name__, *rows({label: text for label, text in words.items() if text})])


def _facts(parameter: Parameter, asked: str, config: Config | None) -> Iterator[tuple[str, Any]]:
    if asked != parameter.name and not parameter.name.endswith(f".{asked}"):
        spelling = "another spelling of" if REGISTRY.find(asked) else "another program's word for"
        yield "spelled", f"{asked} is {spelling} {parameter.name}"
        if others := keyword_search.called(asked):
            yield "also", f"{listed(others, 'and')} {'has' if len(others) == 1 else 'have'} this name"
    yield "meaning", parameter.description
    yield "type", expectation(parameter.type)
    yield "default", default_words(parameter).replace("`", "").replace("*", "")
    yield "changes", EFFECTS.get(parameter.effect, effect_words(parameter).replace("`", ""))
    yield "origin", ", ".join(ORIGINS[origin] for origin in parameter.origins)
    if asked_years := years(asked if REGISTRY.find(asked) else parameter.name):
        yield "in GPT-NeoX", asked_years
    if parameter.replaced_by:
        yield "today", "; ".join(f"{shown(old)} is {_today(new)}" for old, new in parameter.replaced_by.items() if new)
    yield "goes to", destination_words(parameter).replace("`", "") or "nobody: used by deepy alone"
    if parameter.name in plugins.DECLARED:
        yield "declared by", f"plugin {plugins.DECLARED[parameter.name]}"
    if parameter.aliases:
        yield "old spellings", ", ".join(parameter.aliases)
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
