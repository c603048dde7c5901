"""The differences of two configurations: one for each setting, under whatever name each side sets it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from neoxargs.base.record import Record
from neoxargs.base.request import LOCK_FILE
from neoxargs.commands.diff.side import Side, set_names
from neoxargs.config.config import Config
from neoxargs.registry import REGISTRY
from neoxargs.resolve.compare.impact import Impact, impact_of, kind_of, without_spelling
from neoxargs.resolve.effects.unread import unread_by_run
from neoxargs.resolve.provenance import source_of
from neoxargs.resolve.rules.synonyms import names_of_setting
from neoxargs.resolve.secrets import masked

#: Parameters that describe the files or the start of a run, not the run, and two that only set other parameters.
NOT_COMPARED = frozenset(
    {"dialect", "config_files", "user_script", "git_hash", "optimizer.params.max_grad_norm", "sparsity"}
)
#: The names of settings, where rules derive the names from each other in another way than synonyms.
SETTINGS = (("train_batch_size",), ("train_micro_batch_size_per_gpu", "batch_size"),
            ("gradient_accumulation_steps", "gas"), ("world_size", "global_num_gpus"))  # fmt: skip
#: The name to show if the names of a setting have different values.
PREFERRED_NAMES = ("optimizer.params.betas", "precision", "optimizer.type")
#: Section of a run.lock.yml -> kind and impact of a difference in it.
ENVIRONMENT: dict[str, tuple[str, Impact]] = {
    "code": ("code", "result"), "files": ("content", "result"), "packages": ("package", "rounding"),
    "hardware": ("hardware", "rounding"),
}  # fmt: skip
#: Letters of a SHA-256.
DIGEST = 64
#: Parameters shown at most in a line that lists those that only one side sets.
MAX_NAMES = 6


class Difference(Record):
    """A setting with two values."""

    name: str
    kind: str
    impact: Impact
    values: tuple[Any, Any]
    sources: tuple[str, str]
    is_set: bool
    """Whether at least one side sets the parameter; otherwise, both values are defaults or derived."""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        a, b = ({"value": value, "source": source} for value, source in zip(self.values, self.sources, strict=True))
        return {"name": self.name, "impact": self.impact, "kind": self.kind, "note": self.note, "a": a, "b": b}


def differences(a: Side, b: Side) -> list[Difference]:
    """Return all differences; for each impact, those that are set come first, in the registry's order."""
    found = [*_differences(a, b), *_environment(a, b)]
    order = ("result", "rounding", "nothing", "unread")
    return sorted(found, key=lambda each: (order.index(each.impact), not each.is_set))


def spellings(a: Side, b: Side) -> str:
    """Return which parameters only one side sets, for two sides with the same values; "" if there are none."""
    in_a, in_b = set_names((a, b))
    names = (sorted(in_a - in_b - NOT_COMPARED), sorted(in_b - in_a - NOT_COMPARED))
    return "; ".join(
        f"only {side.name} sets {first_names(some)}" for side, some in zip((a, b), names, strict=True) if some
    )


def first_names(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    rest = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _differences(a: Side, b: Side) -> Iterator[Difference]:
    unread = [unread_by_run(side.config, side.unknown) for side in (a, b)]
    for names in _settings():
        differing = [name for name in names if name not in a.unknown | b.unknown and _differs(name, a, b)]
        if not differing:
            continue
        name = _name_shown(differing, a, b)
        parameter = REGISTRY.parameters[name]
        impact, note = impact_of(parameter, (a, b))
        if _same_content(name, a, b):
            impact, note = "nothing", "the files have the same content"
        if all(is_unread(name) for is_unread in unread):
            impact, note = "unread", ""
        is_set = any(_is_set(side.config, each) for side in (a, b) for each in names)
        # A default that no run reads, and that nobody set.
        if impact == "unread" and not is_set:
            continue
        values = masked(name, a.get(name)), masked(name, b.get(name))
        sources = _source(a, name, names), _source(b, name, names)
        yield Difference(name, kind_of(parameter), impact, values, sources, is_set, note)


def _differs(name: str, a: Side, b: Side) -> bool:
    return bool(without_spelling(name, a.get(name)) != without_spelling(name, b.get(name)))


def _environment(a: Side, b: Side) -> Iterator[Difference]:
    """Yield the differences of two runs in code, packages, hardware and the content of files."""
    for section, (kind, impact) in ENVIRONMENT.items():
        of_a, of_b = a.environment.get(section, {}), b.environment.get(section, {})
        for name in [name for name in of_a if name in of_b and contents(of_a[name]) != contents(of_b[name])]:
            values = (_abbreviated(of_a[name]), _abbreviated(of_b[name]))
            yield Difference(
                name, kind, "nothing" if name == "commit" else impact, values, (LOCK_FILE, LOCK_FILE), is_set=True
            )


def contents(entry: Any) -> Any:
    """Return an entry of a lock without the paths of files, which may differ."""
    return [{**file, "path": ""} for file in entry] if _are_files(entry) else entry


def _abbreviated(entry: Any) -> Any:
    """Return an entry with short digests."""
    if _are_files(entry):
        return ", ".join(f"{file['sha256'][:8]} ({file['bytes']:,} bytes)" for file in entry)
    return entry[:8] if isinstance(entry, str) and len(entry) == DIGEST else entry


def _are_files(entry: Any) -> bool:
    return isinstance(entry, list) and bool(entry) and all(isinstance(file, dict) for file in entry)


@cache
def _settings() -> tuple[tuple[str, ...], ...]:
    """Return the names of every setting."""
    names = [name for name in REGISTRY.parameters if name not in NOT_COMPARED]
    groups = {name: group for group in SETTINGS for name in group}
    of_setting = (groups.get(name) or names_of_setting(name) for name in names)
    return tuple(dict.fromkeys(of_setting))


def _same_content(name: str, a: Side, b: Side) -> bool:
    """Return whether both sides recorded the same content for the files that a parameter names."""
    files = [side.environment.get("files", {}).get(name) for side in (a, b)]
    return bool(files[0]) and contents(files[0]) == contents(files[1])


def _is_set(config: Config, name: str) -> bool:
    """Return whether the user set a parameter, or a retired one that stands for it."""
    inputs = [read for read in config.source(name).inputs if read in REGISTRY.parameters]
    return config.is_set(name) or any(REGISTRY.parameters[read].replaced_by and config.is_set(read) for read in inputs)


def _name_shown(differing: Sequence[str], a: Side, b: Side) -> str:
    """Return the name of a setting that is most familiar to the reader: one that a side sets."""
    preferred = next((name for name in PREFERRED_NAMES if name in differing), None)
    named = (name for side in (a, b) for name in differing if side.has_sources and side.config.is_set(name))
    return preferred or next(named, differing[0])


def _source(side: Side, name: str, names: Sequence[str]) -> str:
    """Return where a value comes from: the place of any name of the setting."""
    config = side.config
    if not side.has_sources:
        return "recorded" if name in config.values else "default"
    at = name if config.is_set(name) else next((other for other in names if config.is_set(other)), name)
    return str(config.source(at)) if config.is_set(at) or config.dialect is None else source_of(name, config)
