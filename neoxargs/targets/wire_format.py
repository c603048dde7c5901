"""The wire format between `deepy` and the ranks: command line arguments with JSON in URL-safe base64.

`--deepspeed_config` and `--megatron_config` are those of GPT-NeoX, so that its scripts start under this launcher and
this package's scripts under its launcher. `--deepy_config` has the values that only this package's scripts read,
`--deepy_places` where the values are set.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from neoxargs.base.problems import SET, Place, Problem, Problems, without_secrets
from neoxargs.base.record import Record, as_dict
from neoxargs.base.text import shorten
from neoxargs.config.config import Config
from neoxargs.config.value import Source, Value
from neoxargs.registry import REGISTRY, normal, plugins
from neoxargs.targets import deepspeed, neox_compat
from neoxargs.targets.planned import Planned
from neoxargs.targets.ranks import rank_values

DEEPSPEED = "--deepspeed_config"
MEGATRON = "--megatron_config"
DEEPY = "--deepy_config"
#: Where the values are set: file -> `line:column` -> names; SET -> its argument -> names.
PLACES = "--deepy_places"
PLUGINS = "--deepy_plugins"
LOCAL_RANK = "--local_rank"
#: The keys for what a launch says of itself, in DEEPY beside the parameters: see RankArguments.
ATTEMPT, LAUNCH, JOB, PLANNED = "attempt", "launch", "job", "planned"
#: Characters of a `--set` argument in PLACES; its complete value is sent already.
MAX_SET = 80

Places = dict[str, dict[str, list[str]]]

#: The source of a rank's values, with the place if it is known.
LAUNCHER = Source("environment", text=MEGATRON)


def encode(values: Mapping[str, Any]) -> str:
    """Encode values as one argument that needs no quoting in any shell."""
    # Without blanks, because Linux limits an argument to 128 KiB.
    text = json.dumps(values, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode(text: str) -> dict[str, Any]:
    """Decode the result of `encode`; raises ValueError for any other text."""
    try:
        values = json.loads(base64.b64decode(text, altchars=b"-_", validate=True))
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"not URL-safe base64 JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"expected a JSON object, got {type(values).__name__}")
    return values


def script_arguments(
    config: Config, attempt: str = "", launch: str = "", job: str = "", planned: Planned | None = None
) -> list[str]:
    """Return the arguments of every rank's script; attempt, launch, job, planned: see RankArguments."""
    said = {ATTEMPT: attempt, LAUNCH: launch, JOB: job, PLANNED: as_dict(planned) if planned else None}
    payloads = {
        DEEPSPEED: deepspeed.deepspeed_json(config),
        MEGATRON: neox_compat.neox_values(config),
        DEEPY: neox_compat.extra_values(config) | {name: each for name, each in said.items() if each},
        PLACES: _places(config),
    }
    words = [word for option, values in payloads.items() for word in (option, encode(values))]
    return [*words, *((PLUGINS, ",".join(plugins.LOADED)) if plugins.LOADED else ())]


def _places(config: Config) -> Places:
    """Return the places of the values that ranks receive; a derived value has that of one that it derives from."""
    found: Places = {}
    for name in rank_values(config):
        if place := config.place(name):
            is_set = place.file == SET
            at = shorten(without_secrets(place.text), MAX_SET) if is_set else f"{place.line}:{place.column}"
            found.setdefault(place.file, {}).setdefault(at, []).append(name)
    return found


def _sources(places: Places) -> Iterator[tuple[str, Source]]:
    """Yield the names in the result of `_places`, each with its source."""
    for file, by_place in places.items():
        for at, names in by_place.items():
            line, _, column = ("1", "", "1") if file == SET else at.partition(":")
            text = at if file == SET else ""
            where = Place(file, int(line), int(column), text, max(1, len(text)))
            yield from ((name, LAUNCHER._replace(where=where)) for name in names)


def config_from_values(values: Mapping[str, Any], places: Places | None = None) -> Config:
    """Return the configuration that `ranks.train_values` was made from. places: see PLACES.

    Nested sections become dotted names; the value of a parameter that is itself a mapping is not flattened.
    """
    sources = dict(_sources(places or {}))
    flat: dict[str, Value] = {}
    sections: set[str] = set()
    for name, value in _flatten(values, "", sections):
        parameter = REGISTRY.find(name)
        if parameter is None:
            what = f"{MEGATRON} contains {name}, which is not a known parameter"
            hint = "use the same version of neoxargs for the launcher and on all hosts"
            raise Problems([Problem(what, hint=hint, id="rank-argument-unknown-parameter")])
        if isinstance(value, list) and parameter.annotation.startswith("tuple"):
            value = tuple(value)  # JSON has no tuples
        flat[parameter.name] = Value(value, sources.get(parameter.name, LAUNCHER))
    return Config(flat, frozenset(sections))


def _flatten(values: Mapping[str, Any], prefix: str, sections: set[str]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = prefix + normal(key)
        if isinstance(value, dict) and name in REGISTRY.sections:
            sections.add(name)
            yield from _flatten(value, name + ".", sections)
        else:
            yield name, value


class RankArguments(Record):
    """The decoded command line of a rank."""

    config: Config
    deepspeed: dict[str, Any]
    """The JSON for the DeepSpeed engine."""
    local_rank: int
    rest: tuple[str, ...]
    """Arguments for the script itself."""
    attempt: str = ""
    """The name of this attempt, which its logs are kept under."""
    launch: str = ""
    """The launch in the lock of the run's folders; empty if the ranks need no lock."""
    job: str = ""
    """The Slurm job that this launch is part of; empty if there is none."""
    planned: Planned | None = None
    """What the launcher has planned for these devices; None if it does not know them."""


def parse_rank_arguments(argv: Sequence[str]) -> RankArguments:
    """Parse the arguments of `script_arguments` and those that DeepSpeed's launcher adds; raises Problems."""
    found: dict[str, str] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        option, equals, value = word.partition("=")
        # DeepSpeed's launcher passes --local_rank, torch's --local-rank.
        option = option[:2] + normal(option[2:])
        if option in (DEEPSPEED, MEGATRON, DEEPY, PLACES, PLUGINS, LOCAL_RANK):
            found[option] = value if equals else next(words, "")
        else:
            rest.append(word)
    # Before the values, whose parameters may be a plugin's.
    plugins.load(filter(None, found.get(PLUGINS, "").split(",")))
    for option in (DEEPY, PLACES):  # GPT-NeoX's launcher does not send them
        found.setdefault(option, encode({}))
    payloads = {option: _payload(found, option) for option in (DEEPSPEED, MEGATRON, DEEPY, PLACES)}
    attempt, launch, job = (str(payloads[DEEPY].pop(name, "")) for name in (ATTEMPT, LAUNCH, JOB))
    planned = Planned(**told) if (told := payloads[DEEPY].pop(PLANNED, None)) else None
    config = config_from_values({**payloads[MEGATRON], **payloads[DEEPY]}, payloads[PLACES])
    local = found.get(LOCAL_RANK) or os.environ.get("LOCAL_RANK", "0")
    return RankArguments(config, payloads[DEEPSPEED], int(local), tuple(rest), attempt, launch, job, planned)


def _payload(found: Mapping[str, str], option: str) -> dict[str, Any]:
    if option not in found:
        script = os.path.basename(sys.argv[0])
        hint = f"start the script through deepy: deepy {script if script.endswith('.py') else 'train.py'} my.yml"
        raise Problems([Problem(f"the argument {option} is missing", hint=hint, id="rank-argument-missing")])
    try:
        return decode(found[option])
    except ValueError as error:
        what = f"{option} cannot be decoded: {error}"
        raise Problems([Problem(what, id="rank-argument-unreadable")]) from error
