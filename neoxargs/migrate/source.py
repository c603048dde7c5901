"""The interface between `deepy migrate` and its formats: GPT-NeoX YAML, DeepSpeed JSON, Megatron-LM scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from neoxargs.base.files import Text
from neoxargs.migrate.result import Result

#: The dialect of new files.
CURRENT_DIALECT = "neox-2026"


@dataclass(frozen=True)
class Options:
    """Command-line options that only some sources read."""

    to: str = CURRENT_DIALECT
    variables: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    choose: int | None = None
    """Which of several configurations in one file to convert, counted from 1."""
    deepspeed: str | None = None
    """The version of DeepSpeed in which a JSON was used; None if it is not known."""
    run: bool = False
    """Whether the script is run, which the user has confirmed, rather than read."""


class Source(Protocol):
    """A format that can be migrated; add an instance to `SOURCES` to support another one."""

    name: str
    """The name of the format for `--from`."""
    describes: str
    """What messages call a file of the format, such as `a DeepSpeed JSON`."""
    options: frozenset[str] = frozenset()
    """Which of `--to`, `--var`, `--choose`, `--deepspeed` and `--run` apply to the format."""
    is_whole_run: bool = False
    """True if a file of the format describes a whole run, so the new file passes `deepy check` by itself."""
    edits_in_place: bool = False
    """True if files are edited in place; False if one file becomes one new file."""

    def recognises(self, text: Text) -> bool:
        """Return whether the file is in this format. The first source that returns True reads it."""
        ...

    def converts(self, texts: Sequence[Text], options: Options) -> Result:
        """Convert files to current YAML: one file, or several if they are edited in place. Raises Problems."""
        ...
