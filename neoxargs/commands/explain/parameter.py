"""Describe a parameter: meaning, type, default, receivers and, with files, its value and the source of the value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neoxargs.base.problems import listed
from neoxargs.commands.docs.parameters import (
    default_words,
    destination_words,
    neox_dates,
    refusal_words,
)
from neoxargs.commands.explain import keyword_search
from neoxargs.commands.explain.destinations import destinations
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
    described = {label: value for label, value in _described(parameter, asked, config) if label != "sent as" or value}
    return "\n".join([parameter.name, *rows(described, config)])


def to_markdown(parameter: Parameter, asked: str, config: Config | None) -> str:
    """Return the description as Markdown: the name with its value, the meaning, and the rest as a list."""
    described = {label: value for label, value in _described(parameter, asked, config) if label != "sent as" or value}
    value = f": {json_words(described.pop('value'))}" if config is not None else ""
    meaning = markdown(described.pop("meaning"))
    return "\n".join([f"**`{parameter.name}{value}`**", "", meaning, "", *items(described)])


def _described(parameter: Parameter, asked: str, config: Config | None) -> Iterator[tuple[str, Any]]:
    if asked != parameter.name and not parameter.name.endswith(f".{asked}"):
        spelling = "another spelling of" if REGISTRY.find(asked) else "another program's name for"
        yield "alias", f"{asked} is {spelling} {parameter.name}"
        if others := keyword_search.names_ending_in(asked):
            yield "also", f"{listed(others, 'and')} {'has' if len(others) == 1 else 'have'} this name"
    name = parameter.name
    yield "meaning", parameter.description
    yield "type", describe_type(parameter.type)
    # The words of the table in docs/parameters.md, without its Markdown.
    yield "default", default_words(parameter, "; ").replace("`", "").replace("*", "")
    reason = parameter.no_effect_reason.replace("`", "")
    yield "affects", f"nothing: {reason}" if reason else EFFECTS.get(parameter.effect, parameter.effect)
    yield from _refusal(parameter)
    yield "origin", _origin(parameter)
    if asked_years := neox_dates(asked if REGISTRY.find(asked) else parameter.name):
        yield "in GPT-NeoX", asked_years
    if parameter.replaced_by:
        words = {json_words(old): " and ".join(f"{name}: {json_words(value)}" for name, value in new.items())
                 for old, new in parameter.replaced_by.items() if new}  # fmt: skip
        yield "replaced by", "; ".join(f"{new} (for {old})" for old, new in words.items())
    yield "sent to", destination_words(parameter).replace("`", "") or "no other program"
    if parameter.aliases:
        yield "old names", ", ".join(parameter.aliases)
    if config is None or config.source(parameter.name).kind != "derived":
        yield from (("derived", rule.reason) for rule in DERIVATIONS if parameter.name in rule.results)
    readers = [rule for rule in DERIVATIONS if name in rule.inputs and name not in rule.results]
    if results := dict.fromkeys(result for rule in readers for result in rule.results):
        yield "determines", ", ".join(results)
    if parameter.name in AUTO_VALUES and "DSC" in parameter.origins:
        yield (
            "auto",
            f"{AUTO_VALUES[parameter.name].why}; `deepy migrate` replaces auto with this value if it is known",
        )
    if config is not None:
        value = config.get(parameter.name)
        yield "value", None if value is ABSENT else value
        yield "source", tree(parameter.name, config)
        yield "sent as", destinations(parameter, config)
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


def _refusal(parameter: Parameter) -> Iterator[tuple[str, str]]:
    """Yield why train.py refuses values, and what to write instead."""
    if refused := refusal_words(parameter):
        yield "refused", refused.replace("`", "")
    if parameter.instead:
        yield "instead", parameter.instead
