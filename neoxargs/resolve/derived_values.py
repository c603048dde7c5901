"""Where values come from: overridden by `--set` or the environment, or derived by a rule; the command of a launch."""

from __future__ import annotations

from collections.abc import Iterator

from neoxargs.base.text import shorten
from neoxargs.config.config import Config
from neoxargs.config.value import Source
from neoxargs.facts.kinds import attention_layers
from neoxargs.registry import REGISTRY, Parameter
from neoxargs.resolve.effects.switched_off import switched_off_by
from neoxargs.resolve.rules import DERIVATIONS

#: A result of the batch equation. Its rule has equal inputs and results too, but they are not synonyms.
BATCH = "train_batch_size"


def overridden(config: Config, cut: bool) -> Iterator[str]:
    """Return lines such as `lr 0.002  (--set lr=0.002)`. cut: shorten long values."""
    for name, value in config.values.items():
        if value.source.kind in ("set", "environment"):
            yield f"{name} {shorten(value.value, 40 if cut else None)}  ({value.source.short})"


def derived(config: Config, cut: bool) -> Iterator[str]:
    """Return lines for the values derived from set values, without synonyms, defaults and those without effect."""
    listed: set[tuple[str, str]] = set()
    for parameter, value in config.items():
        source = value.source
        if source.kind != "derived" or _has_default(config, parameter) or _is_synonym(source):
            continue
        if _has_no_effect(config, parameter.name):
            continue
        text = shorten(value.value, 24 if cut else None)
        # A rule with several results gives the same reason for each; equal values of it are listed once.
        if (source.text, text) not in listed and not _repeats_itself(config, parameter.name, source):
            listed.add((source.text, text))
            yield f"{parameter.name} {text}: {source.text}"


def _has_no_effect(config: Config, name: str) -> bool:
    """Return whether a derived value concerns no layer of the model, or nothing else of the run."""
    # Recurrent layers use intermediate_size only if it is set.
    unused_width = name == "intermediate_size" and not attention_layers(config)
    return unused_width or switched_off_by(config, name) is not None


def _is_synonym(source: Source) -> bool:
    """Return whether a rule only copied the value from one name of a setting to another."""
    return any(
        rule.inputs == source.inputs and len(rule.results) > 1 and {*rule.results} <= {*rule.inputs}
        for rule in DERIVATIONS
        if BATCH not in rule.results
    )


def _repeats_itself(config: Config, name: str, source: Source) -> bool:
    """Return whether the value equals that of another parameter, or does not depend on any set parameter."""
    others = [other for other in source.inputs if other != name and other in REGISTRY.parameters]
    if not any(config.is_set(other) for other in others):
        return True
    given = [o for o in others if config.is_set(o) or _is_dialects(config, REGISTRY.parameters[o])]
    return name in source.inputs and config.get(name) in [config.get(other) for other in given]


def _has_default(config: Config, parameter: Parameter) -> bool:
    return bool(config.get(parameter.name) == parameter.default) or _is_dialects(config, parameter)


def _is_dialects(config: Config, parameter: Parameter) -> bool:
    """Return whether the value is the default of the files' dialect."""
    then = config.dialect.defaults().get(parameter.name) if config.dialect else None
    default: object = then.value if then else parameter.default
    return bool(config.get(parameter.name) == default)
