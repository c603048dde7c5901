"""`deepy explain KEY [FILE ...]`: describe a parameter, a section, a problem, or find parameters by a word."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from neoxargs.base.problems import SET, Place, Problem, Problems, listed
from neoxargs.base.record import replace
from neoxargs.base.request import Request
from neoxargs.commands.explain import keyword_search, parameter, problem, section
from neoxargs.config.config import Config
from neoxargs.registry import ABSENT, REGISTRY, normal
from neoxargs.resolve.keys.match import Key, keys_of
from neoxargs.resolve.keys.unknown import key_advice, match_key, unknown_key
from neoxargs.resolve.provenance import source_of
from neoxargs.resolve.secrets import without_secrets
from neoxargs.resolve.yaml.write import Setting, yaml_text
from neoxargs.runs.run_spec import RunSpec, resolve_run

USAGE_HINT = "use `explain KEY FILE`, or `explain --all FILE` for all parameters"
NO_MATCH_HINT = "no parameter has this word in its name or description; docs/parameters.md lists all parameters"

#: Parameters that depend on the machine and the time of the start.
FROM_ENVIRONMENT = ("user_script", "config_files", "git_hash")


def explain(key: str, request: Request, markdown: bool = False) -> str:
    """Return the answer as text or JSON. Raises Problems if the name is unknown or the files have problems.

    markdown: as Markdown instead of text.
    """
    text = _answer(key, request, markdown)
    return f"```text\n{text}\n```" if markdown and not text.startswith("**") else text


def _answer(key: str, request: Request, markdown: bool) -> str:
    name, as_json = normal(key.replace(" ", "_")), request.as_json
    found = REGISTRY.find(name)
    if found is None and problem.is_problem(key):
        return _json(problem.to_json(key)) if as_json else problem.to_text(key)
    if found is None and keyword_search.is_file(key):
        what = f"explain: expected a parameter name first, got the file {key}"
        raise Problems([Problem(what, hint=USAGE_HINT, id="explain-needs-a-name")])
    with _words_of_a_name(key, request.files):
        spec = _resolve(request) if request.files else None
    config = spec.config if spec else None
    if found is None and name in REGISTRY.sections:
        return _json(section.to_json(name, config), spec) if as_json else section.to_text(name, config)
    if found is None and len(candidates := keyword_search.by_last_part(name)) > 1:
        return _several(f"several parameters are named {key}:", key, candidates, as_json)
    found = found or next(map(REGISTRY.find, candidates), None)
    if found is None:
        return _mentioning(name, key, as_json)
    if as_json:
        return _json(parameter.to_json(found, name, config), spec)
    return (parameter.to_markdown if markdown else parameter.to_text)(found, name, config)


@contextmanager
def _words_of_a_name(key: str, files: Sequence[str]) -> Iterator[None]:
    """Replace the problem of a missing file that is probably the next word of a name, as in `learning rate`."""
    try:
        yield
    except Problems as stop:
        missing = any(problem.id == "file-missing" for problem in stop.problems)
        joined = "_".join([key, *files])
        if not (missing and (REGISTRY.find(joined) or keyword_search.by_last_part(normal(joined)))):
            raise
        what = f"explain: expected configuration files after {key}, but found no file named {listed(files, 'or')}"
        hint = f"to explain the parameter {joined}, write `explain {joined}`"
        raise Problems([Problem(what, hint=hint, id="explain-needs-a-name")]) from None


def explain_everything(request: Request) -> str:
    """Return the resolved configuration as JSON, or as annotated YAML that resolves to the same. Raises Problems."""
    spec = _resolve(request)
    if not request.as_json:
        return annotated_yaml(spec.config).rstrip("\n")
    values = {p.name: v.value for p, v in spec.config.items() if v.value is not ABSENT and not p.replaced_by}
    described = {name: {"value": value, "source": source_of(name, spec.config)} for name, value in values.items()}
    return _json({"values": described}, spec)


def annotated_yaml(config: Config) -> str:
    """Return YAML of all values that are set, derived, or another dialect's default, with their sources as comments.

    It is itself a configuration that resolves to the same values; derived values are written out.
    """
    settings = {}
    for p, value in config.items():
        is_hidden = value.value is ABSENT or p.replaced_by or p.name in FROM_ENVIRONMENT
        if not is_hidden and (config.is_set(p.name) or value.value != p.default):
            settings[p.name] = Setting(value.value, behind=" ".join(source_of(p.name, config).split()))
    empty = config.sections - {name.rpartition(".")[0] for name in settings}
    left = sum(1 for p, _ in config.items() if p.name not in settings)
    head = [
        "The resolved configuration, printed by deepy explain --all.",
        "Used as a configuration file, this file resolves to the same values as the original files.",
        f"The {left} parameters that are not listed have their default values (docs/parameters.md).",
    ]
    assert config.dialect is not None  # only the configuration that a rank receives has no dialect
    settings["dialect"] = Setting(config.dialect.name, behind=config.dialect.reason)
    return yaml_text(settings, head, empty)


def _resolve(request: Request) -> RunSpec:
    """Return the configuration with asterisks in place of secrets."""
    spec = resolve_run(request, os.environ)
    return replace(spec, config=without_secrets(spec.config))


def _json(answer: dict[str, Any], spec: RunSpec | None = None) -> str:
    warnings = [warning.to_json() for warning in spec.warnings] if spec else []
    return json.dumps({"ok": True, **answer, "problems": warnings}, indent=2, default=str)


def _mentioning(name: str, key: str, as_json: bool) -> str:
    """Return the parameters that mention the word. Raises Problems if one has a similar name, or none mentions it."""
    if " " in key.strip():
        described = keyword_search.by_question(key)
    else:
        described = keyword_search.by_word(name) if keyword_search.by_choice(name) else {}
    asked = Key(name, key, Place(SET, 1, 1, key, len(key)))
    match = None if described else match_key(asked)
    unknown = replace(unknown_key(asked, match), where=None)
    if match or (asked.section and keys_of(asked.section)):
        raise Problems([replace(unknown, hint=key_advice(asked, match))])
    if not described and not (described := keyword_search.by_word(name)):
        raise Problems([replace(unknown, hint=problem.nearest_problem(key) or NO_MATCH_HINT)])
    return _several(f"no parameter is named {key}; these parameters mention the word:", key, described, as_json)


def _several(head: str, key: str, described: dict[str, str], as_json: bool) -> str:
    if as_json:
        return _json({"name": key, "found": described})
    first = dict(list(described.items())[: keyword_search.MAX_RESULTS])
    left = len(described) - len(first)
    return "\n".join(
        [head, *section.table(first), *([f"  and {left} more, listed in docs/parameters.md"] if left else [])]
    )
