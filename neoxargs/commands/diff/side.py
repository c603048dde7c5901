"""One side of a comparison: the configuration that a word of the command line stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from neoxargs.base.problems import Place
from neoxargs.base.record import Record, replace
from neoxargs.base.request import LOCK_FILE
from neoxargs.checks.checkpoint.changes import recorded_config
from neoxargs.commands.diff.launches import Launch, launches_of
from neoxargs.config.config import Config
from neoxargs.config.value import Kind, Source, Value
from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.resolve import Draft
from neoxargs.resolve.compare.differences import value_of
from neoxargs.resolve.secrets import masked
from neoxargs.runs.lockfile import read_lock

#: The source of a value that a checkpoint records without its source.
RECORDED = Source("file", text="recorded")
#: `source` in a run's record: the place of a value in a file.
PLACE = re.compile(r"(.+):(\d+):(\d+)")


class Side(Record):
    """A resolved configuration; values that are not recorded are `broken`."""

    name: str
    """As given on the command line."""
    kind: str
    """What the name refers to, such as `run folder`."""
    config: Config
    ranks: int
    has_sources: bool = True
    """Whether the source of each value is known."""
    folder: Path | None = None
    """The run folder, which may contain the losses."""
    checkpoint: Path | None = None
    """The folder of the checkpoint, if the name refers to one."""
    environment: Mapping[str, Mapping[str, Any]] = {}
    """The sections of the run's run.lock.yml: code, packages, hardware, files."""
    launches: Sequence[Launch] = ()
    """Of the run in a folder, the last of which is compared; empty if they are not recorded."""

    def get(self, name: str) -> Any:
        """Return a value as it is compared, with asterisks in place of secrets."""
        return masked(name, value_of(self.config, name))


class Drafted(Record):
    """Configuration files that are resolved once it is known for how many ranks."""

    name: str
    kind: str
    draft: Draft
    ranks: int | None
    """Number of ranks; None if neither the files nor their folder determine it."""
    checkpoint: Path | None = None
    """As of Side."""


def of_lock(name: str) -> Side:
    """Return the side of a run.lock.yml; raises Problems."""
    lock = read_lock(name)
    return replace(of_record(name, lock.values, None), kind="lock file", environment=lock.sections)


def of_record(name: str, values: Mapping[str, Any], folder: Path | None) -> Side:
    """Return the side of a run's record: name -> {value, source}. Names of other versions are left out."""
    known = {key: entry for key, entry in values.items() if key in REGISTRY.parameters}
    read = {key: Value(entry["value"], recorded_source(str(entry["source"]))) for key, entry in known.items()}
    nulls = any(value.value is None for value in read.values())  # earlier versions recorded none
    missing = {key: p.default for key, p in REGISTRY.parameters.items() if key not in read and p.default is not ABSENT}
    unknown = {key for key, default in missing.items() if nulls or default is not None}
    config = Config(read, broken=frozenset(unknown))
    path = folder / LOCK_FILE if folder else None
    sections = read_lock(path).sections if path and path.exists() else {}
    launches = launches_of(folder, config) if folder else []
    return Side(name, "run folder", config, ranks_of(config), folder=folder, environment=sections, launches=launches)


def of_checkpoint(name: str, values: Mapping[str, Any], iteration: int, folder: Path) -> Side:
    """Return the side of a checkpoint. values: its config.json; names of other versions are left out."""
    config = recorded_config(values)
    recorded = {key: value._replace(source=RECORDED) for key, value in config.values.items()}
    kind = f"checkpoint of iteration {iteration}"
    not_sent = frozenset(key for key, parameter in REGISTRY.parameters.items() if not parameter.to)
    return Side(name, kind, Config(recorded, broken=not_sent), ranks_of(config), False, checkpoint=folder)


def ranks_of(config: Config) -> int:
    """Return the number of ranks of a recorded configuration."""
    ranks = config.get("world_size")
    return ranks if isinstance(ranks, int) else 1


def is_record(values: object) -> bool:
    """Return whether a JSON is a run's record: every value has a source."""
    return isinstance(values, dict) and all(
        isinstance(entry, dict) and {"value", "source"} == entry.keys() for entry in values.values()
    )


def recorded_source(text: str) -> Source:
    """Return the source that a run's record describes."""
    kind, _, rest = text.partition(": ")
    if kind in ("default", "derived", "environment"):
        return Source(cast(Kind, kind), text=rest)
    if found := PLACE.fullmatch(text):
        return Source("file", Place(found[1], int(found[2]), int(found[3])))
    return Source("set", Place("--set", 1, 1, text.removeprefix("--set ")))


def short_pair(one: Any, other: Any, limit: int = 36) -> tuple[str, str]:
    """Return two different values as JSON, each shortened to where they differ if its beginning is the other's."""
    short, whole = [], [json.dumps(value, ensure_ascii=False, default=str) for value in (one, other)]
    same = next((at for at, (a, b) in enumerate(zip(*whole, strict=False)) if a != b), min(map(len, whole)))
    for value, text in zip((one, other), whole, strict=True):
        shown, end = short_json(value, limit), text[max(same - limit // 3, 0) :].lstrip()
        if shown.endswith(" …") and same >= limit - 2:
            shown = f"… {end if len(end) <= limit - 2 else f'{end[: limit - 4]} …'}"
        short.append(shown)
    return short[0], short[1]


def short_json(value: Any, limit: int = 36) -> str:
    """Return a value as JSON, shortened; a list of equal items as `12 x "global"`."""
    if isinstance(value, list) and len(value) > 2 and all(item == value[0] for item in value):
        return f"{len(value)} x {json.dumps(value[0])}"
    text = "not set" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit else f"{text[: limit - 2]} …"
