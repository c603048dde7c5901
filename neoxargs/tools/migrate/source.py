"""What `deepy migrate` asks of a source of configurations: GPT-NeoX's YAML, DeepSpeed's JSON or another form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from neoxargs.resolve import Text
from neoxargs.tools.migrate.result import Result

#: The dialect that new files are written in.
TODAY = "neox-2026"


@dataclass(frozen=True)
class Options:
    """The options of the command line that some sources read."""

    to: str = TODAY
    variables: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    choose: int | None = None
    """Of several configurations in one file, the one with this number (from 1)."""


class Source(Protocol):
    """A form that configurations come in; a row of `SOURCES`."""

    name: str
    """The word for it behind `--from`."""
    describes: str
    """What one of its files is called in a sentence."""
    options: frozenset[str] = frozenset()
    """The options that it reads: `--to`, `--var`, `--choose`."""
    edits_in_place: bool = False
    """Are its files edited where they stand? Otherwise one of them becomes one new file."""

    def recognises(self, text: Text) -> bool:
        """Is the file in this form? The first source that says so gets it."""
        ...

    def converts(self, texts: Sequence[Text], options: Options) -> Result:
        """The files as today's YAML; one file, unless they are edited in place. Raises Problems."""
        ...
