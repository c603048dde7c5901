"""What one command line asks for; every verb and every launch is passed it whole."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

Self = TypeVar("Self", bound="Request")


@dataclass(frozen=True)
class Request:
    """A configuration by its files, and for which machine it is meant."""

    files: Sequence[str]
    overrides: Sequence[str] = ()
    """`KEY=VALUE`, as `--set` takes them."""
    directory: str | None = None
    """Where the files are looked for first (`--conf_dir`)."""
    gpus: int | None = None
    """As if there were so many GPUs (`--gpus`); None: what this machine or its hostfile has."""
    as_json: bool = False
    """Is the answer meant for a program?"""
    script: str = ""
    """What a launch is to start, as it was written; empty for a verb."""

    @classmethod
    def of(cls, options: Namespace, overrides: Sequence[str] = (), script: str = "") -> Request:
        """From the options of `options.add_files` and `add_json`; overrides: more of them."""
        as_json = getattr(options, "json", False)
        return cls(options.files, [*overrides, *options.set], options.conf_dir, options.gpus, as_json, script)

    def with_overrides(self: Self, changes: Sequence[str]) -> Self:
        """The same with other values; a key that is given twice would be a mistake."""
        changed = {change.partition("=")[0] for change in changes}
        kept = [given for given in self.overrides if given.partition("=")[0] not in changed]
        return replace(self, overrides=[*kept, *changes])
