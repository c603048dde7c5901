"""`deepy explain KEY [FILE ...]`: a parameter, a section, a word in their names, or a problem that `check` found."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

from neoxargs.launch.run_spec import RunSpec, resolve_run
from neoxargs.problems import SET, Place, Problem, Problems
from neoxargs.registry import REGISTRY, normal
from neoxargs.request import Request
from neoxargs.resolve.keys.match import Key, keys_of
from neoxargs.resolve.keys.unknown import key_advice, match_key, unknown_key
from neoxargs.tools.explain import explain_all, keyword_search, parameter, problem, section

#: Where a file stands in the place of the parameter.
FIRST = "write `explain KEY FILE`, or `explain --all FILE` for every one"
#: Where nothing has the word that was asked for.
NOWHERE = "no parameter has it in its name or description; docs/parameters.md lists all"


def explain(key: str, request: Request) -> str:
    """The answer as text or JSON; raises Problems if nothing has that name, or the files have problems."""
    name, as_json = normal(key), request.as_json
    found = REGISTRY.find(name)
    if found is None and problem.is_problem(key):
        return _json(problem.to_json(key)) if as_json else problem.to_text(key)
    if found is None and keyword_search.is_file(key):
        what = f"explain wants a parameter first, and {key} is a file"
        raise Problems([Problem(what, hint=FIRST, id="explain-needs-a-name")])
    spec = resolve_run(request, os.environ) if request.files else None
    config = spec.config if spec else None
    if found is None and name in REGISTRY.sections:
        return _json(section.to_json(name, config), spec) if as_json else section.to_text(name, config)
    if found is None and len(candidates := keyword_search.by_last_part(name)) > 1:
        return _several(f"several parameters are called {key}:", key, candidates, as_json)
    found = found or next(map(REGISTRY.find, candidates), None)
    if found is None:
        return _nearest(name, key, as_json)
    return _json(parameter.to_json(found, name, config), spec) if as_json else parameter.to_text(found, name, config)


def explain_everything(request: Request) -> str:
    """The resolved configuration, annotated: YAML that resolves to the same, or JSON; raises Problems."""
    spec = resolve_run(request, os.environ)
    if request.as_json:
        return _json({"values": explain_all.to_json(spec.config)}, spec)
    return explain_all.annotated_yaml(spec.config).rstrip("\n")


def _json(answer: dict[str, Any], spec: RunSpec | None = None) -> str:
    warnings = [warning.to_json() for warning in spec.warnings] if spec else []
    return json.dumps({"ok": True, **answer, "problems": warnings}, indent=2, default=str)


def _nearest(name: str, key: str, as_json: bool) -> str:
    """What has the word in it, where no parameter is like it; raises Problems otherwise."""
    asked = Key(name, key, Place(SET, 1, 1, key, len(key)))
    match = match_key(asked)
    unknown = replace(unknown_key(asked, match), where=None)
    if match or (asked.section and keys_of(asked.section)):
        raise Problems([replace(unknown, hint=key_advice(asked, match))])
    described = keyword_search.by_word(name)
    if not described:
        raise Problems([replace(unknown, hint=problem.nearest_problem(key) or NOWHERE)])
    return _several(f"no parameter is called {key}; about it:", key, described, as_json)


def _several(head: str, key: str, described: dict[str, str], as_json: bool) -> str:
    if as_json:
        return _json({"name": key, "found": described})
    first = dict(list(described.items())[: keyword_search.MOST])
    left = len(described) - len(first)
    return "\n".join([head, *section.table(first), *([f"  and {left} more: docs/parameters.md"] if left else [])])
