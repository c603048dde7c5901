"""Where values come from: overridden by `--set` or the environment, or derived by a rule; the command of a launch."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from neoxargs.base.problems import SET
from neoxargs.config.config import Config
from neoxargs.config.value import Source
from neoxargs.facts.kinds import attention_layers
from neoxargs.launch.start.prepare import RECORD_FILE
from neoxargs.registry import REGISTRY, Parameter, plugins
from neoxargs.resolve.effects.switched_off import switched_off_by
from neoxargs.resolve.rules import DERIVATIONS

#: A result of the batch equation. Its rule has equal inputs and results too, but they are not synonyms.
BATCH = "train_batch_size"


def overridden(config: Config, cut: bool) -> Iterator[str]:
    """Return lines such as `lr 0.002  (--set lr=0.002)`. cut: shorten long values."""
    for name, value in config.values.items():
        if value.source.kind in ("set", "environment"):
            yield f"{name} {shorten(value.value, 40 if cut else None)}  ({describe_source(value.source)})"


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


def launch_command(config: Config) -> str:
    """Return a command that launches a run with the files and overrides of its record in `run_dir`; "" without one."""
    try:
        record = json.loads(Path(config.logging.run_dir, RECORD_FILE).read_text(encoding="utf-8"))
        sources = list(dict.fromkeys(str(entry["source"]) for entry in record.values()))
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return ""
    files = dict.fromkeys(match[1] for source in sources if (match := re.fullmatch(r"(.+?):\d+:\d+", source)))
    order = list(config.get("config_files") or ())  # of the files by their base names; the record is in that of keys
    in_order = sorted(files, key=lambda file: order.index(base) if (base := os.path.basename(file)) in order else -1)
    changes = [source.partition(" ")[2] for source in sources if source.startswith(f"{SET} ")]
    options = [*(("--plugin", name) for name in plugins.LOADED), *((SET, change) for change in changes)]
    words = [
        "deepy",
        str(config.get("user_script") or "train.py"),
        *in_order,
        *(word for pair in options for word in pair),
    ]
    return shlex.join(words)


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


def describe_source(source: Source) -> str:
    """Return the place of a value, or else the name of its source."""
    return str(source.where) if source.where else source.text or source.kind


def shorten(value: object, limit: int | None) -> str:
    """Format a value in at most `limit` characters; a list of equal items as `12 x "global"`."""
    if isinstance(value, list) and len(value) > 2 and all(item == value[0] for item in value):
        return f"{len(value)} x {json.dumps(value[0])}"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"
