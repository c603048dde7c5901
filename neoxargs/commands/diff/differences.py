"""The differences of two runs, ranked by what they can do: settings, and what their locks record beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from neoxargs.base.problems import listed
from neoxargs.base.record import as_dict
from neoxargs.base.request import LOCK_FILE
from neoxargs.commands.diff.launches import reads_before
from neoxargs.commands.diff.side import Side
from neoxargs.registry import REGISTRY
from neoxargs.resolve.compare.apart import NOT_OF_THE_RUN, names
from neoxargs.resolve.compare.differences import Difference, differences
from neoxargs.resolve.compare.impact import IMPACT_ORDER, Impact, impact_of, kind_of
from neoxargs.resolve.compare.same_result import EXPECTED, as_shown
from neoxargs.resolve.provenance import source_of

#: Section of a run.lock.yml -> kind and impact of a difference in it.
ENVIRONMENT: dict[str, tuple[str, Impact]] = {
    "code": ("code", "result"), "files": ("content", "result"), "packages": ("package", "unshown"),
    "hardware": ("hardware", "unshown"),
}  # fmt: skip
#: Letters of a SHA-256.
DIGEST = 64
#: Parameters shown at most in a line that lists those that only one side sets.
MAX_NAMES = 6


class RankedDifference(Difference):
    """A difference with what it can do to a run, and where the values come from."""

    kind: str
    impact: Impact
    sources: tuple[str, str]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        a, b = ({"value": value, "source": source} for value, source in zip(self.values, self.sources, strict=True))
        return {"name": self.name, "impact": self.impact, "kind": self.kind, "note": self.note, "a": a, "b": b}


def ranked(a: Side, b: Side) -> list[RankedDifference]:
    """Return all differences; for each impact, those that are set come first, in the registry's order."""
    found = [*_of_values(a, b), *_of_environments(a, b)]
    return sorted(found, key=lambda each: (IMPACT_ORDER.index(each.impact), not each.is_set))


def spellings(a: Side, b: Side) -> str:
    """Return which parameters only one side sets, for two sides with the same values; "" if there are none."""
    in_a, in_b = ({*filter(side.config.is_set, side.config.values)} for side in (a, b))
    only = (sorted(each - names(NOT_OF_THE_RUN)) for each in (in_a - in_b, in_b - in_a))
    return "; ".join(
        f"only {side.name} sets {first_names(some)}" for side, some in zip((a, b), only, strict=True) if some
    )


def first_names(found: Sequence[str], most: int = MAX_NAMES) -> str:
    """Return the first names, and how many more there are."""
    rest = len(found) - most
    return ", ".join(found[:most]) + (f" and {rest} more" if rest > 0 else "")


def _of_values(a: Side, b: Side) -> Iterator[RankedDifference]:
    before = {letter: reads_before(side.launches) for letter, side in (("A", a), ("B", b))}
    for found in differences(a.config, b.config, names(NOT_OF_THE_RUN)):
        parameter = REGISTRY.parameters[found.name]
        impact, note = impact_of(parameter, (a, b))
        if impact in EXPECTED:
            impact, note = as_shown(impact, found.names, found.values, (a, b))
        if _same_content(found.name, a, b):
            impact, note = "nothing", "the files have the same content"
        if not any(found.is_read):
            read = [letter for letter, reads in before.items() if reads(found.name)]
            note = f"only earlier launches of {listed(read, 'and')} read it" if read else ""
            impact = impact if read else "unread"
        sources = _source(a, found.names), _source(b, found.names)
        yield RankedDifference(**as_dict(found), kind=kind_of(parameter), impact=impact, sources=sources, note=note)


def _of_environments(a: Side, b: Side) -> Iterator[RankedDifference]:
    """Yield the differences of two runs in code, packages, hardware and the content of files."""
    for section, (kind, impact) in ENVIRONMENT.items():
        of_a, of_b = a.environment.get(section, {}), b.environment.get(section, {})
        for name in [name for name in of_a if name in of_b and contents(of_a[name]) != contents(of_b[name])]:
            values = (_abbreviated(of_a[name]), _abbreviated(of_b[name]))
            can_do: Impact = "nothing" if name == "commit" else impact
            yield RankedDifference((name,), values, True, (True, True), kind, can_do, (LOCK_FILE, LOCK_FILE))


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


def _same_content(name: str, a: Side, b: Side) -> bool:
    """Return whether both sides recorded the same content for the files that a parameter names."""
    files = [side.environment.get("files", {}).get(name) for side in (a, b)]
    return bool(files[0]) and contents(files[0]) == contents(files[1])


def _source(side: Side, setting: Sequence[str]) -> str:
    """Return where a value comes from: the place of any name of the setting."""
    config, name = side.config, setting[0]
    if not side.has_sources:
        return "recorded" if name in config.values else "default"
    return source_of(next(filter(config.is_set, setting), name), config)
