"""The contents of files and `--set`s after the three passes, before anything is derived."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as AnyMapping
from typing import Any, NamedTuple

from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.config.dialect import Dialect
from neoxargs.config.value import Value
from neoxargs.registry.history import NEWEST
from neoxargs.resolve.merge.assign import assign
from neoxargs.resolve.merge.entries import Entries, read_files, read_overrides, read_tree, with_overrides
from neoxargs.resolve.merge.judge import judge
from neoxargs.resolve.yaml.nodes import Mapping
from neoxargs.resolve.yaml.read import File, readable_texts


class Draft(NamedTuple):
    """The user's values, each checked on its own, without defaults and derived values.

    values: by registry name.
    problems: all problems so far.
    auto: parameters set to `auto`, which counts as not set.
    broken: parameters or sections whose value is unknown because of a problem.
    section_places: where each section begins, including empty ones.
    open_places: places of `auto` and null, for values that a rule supplies.
    readable: False if a file is not YAML or has no keys; missing parameters are then not reported.
    files, entries, sets: what was merged.
    """

    values: dict[str, Value]
    problems: list[Problem]
    dialect: Dialect
    auto: frozenset[str]
    broken: frozenset[str]
    section_places: dict[str, Place]
    open_places: dict[str, Place]
    readable: bool
    files: tuple[File, ...]
    entries: Entries
    sets: Entries

    @property
    def sections(self) -> frozenset[str]:
        """The sections in the files, by their current names."""
        return frozenset(self.section_places)

    def with_values(self, values: AnyMapping[str, Any]) -> Draft:
        """Return the draft with further overrides, by registry name, as if by `--set`.

        They replace a `--set` of the same parameter. Nothing is parsed again.
        """
        return _merged(self.files, self.entries, with_overrides(self.sets, values))


def read_draft(
    paths: Iterable[str | os.PathLike[str]],
    directory: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
) -> Draft:
    """Read files and merge them; raises Problems if one cannot be read, with those of the others."""
    texts, unreadable = readable_texts(paths, directory)
    merged = draft([File(*text) for text in texts], overrides)
    if unreadable:
        raise Problems([*unreadable, *merged.problems])
    return merged


def draft(files: Sequence[File], overrides: Sequence[str] = ()) -> Draft:
    """Merge files and `--set KEY=VALUE`s. Problems are collected in `.problems`; nothing is raised.

    A parameter may be set once in all files; only a `--set` overrides files.
    """
    return _merged(tuple(files), read_files(files), read_overrides(overrides))


def draft_of(tree: Mapping) -> Draft:
    """Merge a tree that was not read from YAML as if it were a file of the newest dialect."""
    dialect = Dialect(NEWEST, "the settings were not written for GPT-NeoX")
    return _merged((), read_tree(tree), Entries("set"), dialect)


def _merged(files: tuple[File, ...], entries: Entries, sets: Entries, dialect: Dialect | None = None) -> Draft:
    assigned, judged = assign(entries, sets, dialect), judge(entries, sets)
    meant = {name for judgement in judged for name in judgement.meant}
    return Draft(
        values=assigned.values,
        problems=[*entries.problems, *sets.problems, *assigned.problems, *(problem for problem, _ in judged)],
        dialect=assigned.dialect,
        auto=assigned.auto,
        # A parameter that also has a good value is known in spite of a problem with another spelling of it.
        broken=frozenset((assigned.broken | entries.broken | sets.broken | meant) - set(assigned.values)),
        section_places={**entries.sections, **sets.sections},
        open_places=assigned.open_places,
        readable=entries.readable,
        files=files,
        entries=entries,
        sets=sets,
    )
