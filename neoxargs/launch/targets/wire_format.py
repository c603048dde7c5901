"""The only wire format between `deepy` and the ranks: command line arguments that are JSON in URL-safe base64.

GPT-NeoX's ranks read the first two, so a script written for its launcher starts under this one and the other way
round. The third carries what only our own scripts understand.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neoxargs.launch.targets import deepspeed, neox_compat
from neoxargs.problems import Problem, Problems
from neoxargs.registry import REGISTRY, normal, plugins
from neoxargs.resolve.config import Config
from neoxargs.resolve.value import Source, Value

DEEPSPEED = "--deepspeed_config"
MEGATRON = "--megatron_config"
MORE = "--deepy_config"
PLUGINS = "--deepy_plugins"
LOCAL_RANK = "--local_rank"
#: Beside the parameters in MORE: what this start of the run is called.
ATTEMPT = "attempt"

#: Where every value of a rank comes from; which file a value was written in stays with the launcher.
LAUNCHER = Source("environment", text=MEGATRON)


def encode(values: Mapping[str, Any]) -> str:
    """Values as one word that needs no quoting in any shell."""
    text = json.dumps(values, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode(text: str) -> dict[str, Any]:
    """The values of `encode`; ValueError if the word is something else."""
    try:
        values = json.loads(base64.b64decode(text, altchars=b"-_", validate=True))
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"not URL-safe base64 JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"not a JSON object but a {type(values).__name__}")
    return values


def script_arguments(config: Config, attempt: str = "") -> list[str]:
    """What every rank's script is started with; attempt: the name of this start, under which its logs are kept."""
    payloads = {
        DEEPSPEED: deepspeed.deepspeed_json(config),
        MEGATRON: neox_compat.neox_values(config),
        MORE: neox_compat.extra_values(config) | ({ATTEMPT: attempt} if attempt else {}),
    }
    words = [word for option, values in payloads.items() for word in (option, encode(values))]
    return [*words, *((PLUGINS, ",".join(plugins.LOADED)) if plugins.LOADED else ())]


def config_from_values(values: Mapping[str, Any]) -> Config:
    """The configuration that `ranks.train_values` was made from, apart from its sources.

    Nested sections become dotted names; a parameter whose value is a mapping keeps it whole.
    """
    flat: dict[str, Value] = {}
    sections: set[str] = set()
    for name, value in _flatten(values, "", sections):
        parameter = REGISTRY.find(name)
        if parameter is None:
            what = f"{MEGATRON} carries {name}, which no parameter is called"
            raise Problems([Problem(what, id="rank-argument-unknown-parameter")])
        if isinstance(value, list) and parameter.annotation.startswith("tuple"):
            value = tuple(value)  # JSON knows only lists
        flat[parameter.name] = Value(value, LAUNCHER)
    return Config(flat, frozenset(sections))


def _flatten(values: Mapping[str, Any], prefix: str, sections: set[str]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = prefix + normal(key)
        if isinstance(value, dict) and name in REGISTRY.sections:
            sections.add(name)
            yield from _flatten(value, name + ".", sections)
        else:
            yield name, value


@dataclass(frozen=True)
class RankArguments:
    """A rank's command line, decoded."""

    config: Config
    deepspeed: dict[str, Any]
    """The JSON for the DeepSpeed engine."""
    local_rank: int
    rest: tuple[str, ...]
    """Arguments that are the script's own."""
    attempt: str = ""


def parse_rank_arguments(argv: Sequence[str]) -> RankArguments:
    """Read what `script_arguments` wrote and DeepSpeed's launcher added; raises Problems."""
    found: dict[str, str] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        option, equals, value = word.partition("=")
        option = option[:2] + normal(option[2:])
        if option in (DEEPSPEED, MEGATRON, MORE, PLUGINS, LOCAL_RANK):
            found[option] = value if equals else next(words, "")
        else:
            rest.append(word)
    plugins.load(filter(None, found.get(PLUGINS, "").split(",")))
    found.setdefault(MORE, encode({}))  # GPT-NeoX's launcher has nothing to add
    payloads = {option: _payload(found, option) for option in (DEEPSPEED, MEGATRON, MORE)}
    attempt = str(payloads[MORE].pop(ATTEMPT, ""))
    config = config_from_values({**payloads[MEGATRON], **payloads[MORE]})
    local = found.get(LOCAL_RANK) or os.environ.get("LOCAL_RANK", "0")
    return RankArguments(config, payloads[DEEPSPEED], int(local), tuple(rest), attempt)


def _payload(found: Mapping[str, str], option: str) -> dict[str, Any]:
    if option not in found:
        hint = "start with: python deepy.py train.py my.yml"
        raise Problems([Problem(f"{option} is missing", hint=hint, id="rank-argument-missing")])
    try:
        return decode(found[option])
    except ValueError as error:
        what = f"{option} cannot be read: {error}"
        raise Problems([Problem(what, id="rank-argument-unreadable")]) from error
