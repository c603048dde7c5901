"""Describe a parameter: meaning, type, default, receivers and, with files, its value and the source of the value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from neoxargs.base.problems import Problems, listed
from neoxargs.commands.docs.parameters import default_words, destination_words, neox_dates, refusal_words
from neoxargs.commands.explain import keyword_search
from neoxargs.commands.explain.render import items, json_words, markdown, origin_to_json, rows
from neoxargs.config.config import Config
from neoxargs.facts.attention_kernels import Place, choices, describe_kernels
from neoxargs.facts.context import in_words
from neoxargs.facts.gradient_sum import gradient_sum
from neoxargs.registry import ABSENT, REGISTRY, Parameter, plugins
from neoxargs.resolve.provenance import tree
from neoxargs.resolve.rules import DERIVATIONS
from neoxargs.resolve.values.auto import AUTO_VALUES
from neoxargs.resolve.values.describe_type import describe_type
from neoxargs.targets import deepspeed, neox_compat
from neoxargs.targets.megatron import megatron_flags

ORIGINS = {"DSL": "DeepSpeed's launcher", "DSC": "DeepSpeed's JSON", "Meg": "Megatron-LM", "NeoX": "GPT-NeoX"}
#: Effect in the registry -> text of the row `affects`, where the registry's word alone is not clear.
EFFECTS = {
    "launcher": "which processes are started, and how",
    "layout": "which rank holds which part of the model",
    "engine": "the behaviour of DeepSpeed's engine",
    "schedule": "the learning rate schedule",
    "memory": "the memory that training needs",
    "log": "what is logged",
    "run": "how the run proceeds",
    "config": "only the parameters that are derived from this one",
    "not built": "nothing: train.py accepts only the default",
}

SAME_DEFAULT = "not sent, because DeepSpeed has the same default"
#: Parameters that determine how gradients are summed over data parallel ranks.
SUMS = (
    "communication_data_type", "fp32_allreduce", "data_types.grad_accum_dtype", "zero_optimization.overlap_comm",
    "zero_optimization.reduce_bucket_size", "zero_optimization.reduce_scatter",
)  # fmt: skip


def to_json(parameter: Parameter, asked: str, config: Config | None) -> dict[str, Any]:
    """Return the description for `--json`; `asked` is the name on the command line, possibly an alias."""
    described = dict(_described(parameter, asked, config))
    if config is not None:
        origin = described["source"]
        described |= {"source": origin.why, "from": list(map(origin_to_json, origin.inputs))}
    return {"name": parameter.name, **described}


def to_text(parameter: Parameter, asked: str, config: Config | None) -> str:
    """Return the description as lines of text; `asked` is the name on the command line, possibly an alias."""
    return "\n".join([parameter.name, *rows(_shown(parameter, asked, config), config)])


def to_markdown(parameter: Parameter, asked: str, config: Config | None) -> str:
    """Return the description as Markdown: the name with its value, the meaning, and the rest as a list."""
    described = _shown(parameter, asked, config)
    value = f": {json_words(described.pop('value'))}" if config is not None else ""
    meaning = markdown(described.pop("meaning"))
    return "\n".join([f"**`{parameter.name}{value}`**", "", meaning, "", *items(described)])


def _shown(parameter: Parameter, asked: str, config: Config | None) -> dict[str, Any]:
    """Return the description for people, without an empty list of receivers."""
    return {label: value for label, value in _described(parameter, asked, config) if label != "sent as" or value}


def _described(parameter: Parameter, asked: str, config: Config | None) -> Iterator[tuple[str, Any]]:
    name = parameter.name
    if asked != name and not name.endswith(f".{asked}"):
        spelling = "another spelling of" if REGISTRY.find(asked) else "another program's name for"
        yield "alias", f"{asked} is {spelling} {name}"
        if others := keyword_search.names_ending_in(asked):
            yield "also", f"{listed(others, 'and')} {'has' if len(others) == 1 else 'have'} this name"
    reason = parameter.no_effect_reason.replace("`", "")
    replaced = {json_words(old): " and ".join(f"{other}: {json_words(value)}" for other, value in new.items())
                for old, new in (parameter.replaced_by or {}).items() if new}  # fmt: skip
    makes_it = [rule for rule in DERIVATIONS if name in rule.results]
    readers = [rule for rule in DERIVATIONS if name in rule.inputs and name not in rule.results]
    facts = {
        "meaning": parameter.description,
        "type": describe_type(parameter.type),
        # The words of the table in docs/parameters.md, without its Markdown.
        "default": default_words(parameter, "; ").replace("`", "").replace("*", ""),
        "affects": f"nothing: {reason}" if reason else EFFECTS.get(parameter.effect, parameter.effect),
        "refused": refusal_words(parameter).replace("`", ""),
        "instead": parameter.instead,
        "origin": _origin(parameter),
        "in GPT-NeoX": neox_dates(asked if REGISTRY.find(asked) else name),
        "replaced by": "; ".join(f"{new} (for {old})" for old, new in replaced.items()),
        "sent to": destination_words(parameter).replace("`", "") or "no other program",
        "old names": ", ".join(parameter.aliases),
        "derived": makes_it[-1].reason if makes_it and not (config and config.source(name).kind == "derived") else "",
        "determines": ", ".join(dict.fromkeys(result for rule in readers for result in rule.results)),
    }
    yield from ((label, text) for label, text in facts.items() if text)
    if name in AUTO_VALUES and "DSC" in parameter.origins:
        yield "auto", f"{AUTO_VALUES[name].why}; `deepy migrate` replaces auto with this value if it is known"
    if config is not None:
        value = config.get(name)
        yield "value", None if value is ABSENT else value
        yield "source", tree(name, config)
        yield "sent as", list(_destinations(parameter, config))
        yield from _here(parameter, config)


def _here(parameter: Parameter, config: Config) -> Iterator[tuple[str, str]]:
    """Yield what a parameter brings about together with others, such as the sum of gradients."""
    words = ""
    if parameter.name in SUMS:
        words = gradient_sum(config).describe()
    elif parameter.name == "context_parallel_style":
        words = in_words(config)
    elif parameter.name == "attention_backend":
        words = "on GPUs from the A100 on: " + describe_kernels(choices(config, Place()))
    if words:
        yield "here", words


def _origin(parameter: Parameter) -> str:
    """Return what a parameter comes from: a plugin, deepy itself, or the systems whose names it belongs to."""
    if plugin := plugins.DECLARED.get(parameter.name):
        return f"plugin {plugin}"
    return "deepy" if parameter.ours else ", ".join(ORIGINS[origin] for origin in parameter.origins)


def _destinations(parameter: Parameter, config: Config) -> Iterator[str]:
    """Yield a line per receiver, with the value in its form; one that the receiver has as its default is not sent."""
    name = parameter.name
    if "runner" in parameter.to:
        flags = _with_values(deepspeed.runner_flags(config), name)
        yield f"launcher: {flags or SAME_DEFAULT}"
    if "deepspeed" in parameter.to:
        value = _value_at(deepspeed.deepspeed_json(config), name)
        sent = f'"{name}": {json.dumps(value)}'
        yield f"DeepSpeed's JSON: {SAME_DEFAULT if value is None else sent}"
    if parameter.to:
        of_ranks = {"megatron": neox_compat.neox_values(config), "deepy": neox_compat.extra_values(config)}
        for program, tree in of_ranks.items():
            value = tree.get(name, _value_at(tree, name))
            if value is not None:
                yield f'each rank: --{program}_config "{name}": {json.dumps(value)}'
    if parameter.megatron:
        try:
            flags = _with_values(megatron_flags(config), parameter.megatron.removeprefix("!"))
        except Problems as refused:
            names = dict.fromkeys(problem.about[0] for problem in refused.problems if problem.about)
            yield f"--emit megatron: refused, because Megatron-LM does not support this run's {listed(names, 'and')}"
        else:
            yield f"--emit megatron: {flags or 'no flag; Megatron-LM has the same default'}"


def _with_values(words: list[str], name: str) -> str:
    """Return the flag `--name` of a command line together with its values, or ''."""
    start = next((i for i, word in enumerate(words) if word.partition("=")[0] == f"--{name}"), None)
    if start is None:
        return ""
    end = next((i for i in range(start + 1, len(words)) if words[i].startswith("--")), len(words))
    return " ".join(words[start:end])


def _value_at(tree: dict[str, Any], name: str) -> Any:
    """Return the value at a dotted name in nested dictionaries, or None."""
    value: Any = tree
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
