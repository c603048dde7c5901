"""The arguments of one command line as an object, passed to every command and every launch."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence

from neoxargs.base.problems import Problem
from neoxargs.base.record import Record

#: The file in a run folder that records what the run depends on; `runs/lockfile.py` writes it.
LOCK_FILE = "run.lock.yml"
#: The files that can have a repository's table of runs; `commands/check/table.py` reads them.
RUN_TABLES = OWN_TABLE, SHARED_TABLE = ("deepy.toml", "pyproject.toml")
#: The file in a run's folders that says who holds them, until the run ends; `processes/run_lock.py` writes it.
HOLDER_FILE = "run.lock"
#: Packages of which another version than the installed one can be assumed.
ASSUMED = ("deepspeed", "torch", "megatron", "transformers", "accelerate")
LOCK_START = re.compile(r"(#.*\n)*format: \d+\nscript: ")


class Request(Record):
    """The files of a configuration, its overrides, and the machine that it is for."""

    files: Sequence[str]
    overrides: Sequence[str] = ()
    """`KEY=VALUE` strings of `--set`."""
    directory: str | None = None
    """Folder to look for the files in first (`--conf_dir`)."""
    gpus: int | None = None
    """Number of GPUs to assume (`--gpus`); None: those of this machine or of the hostfile."""
    assumed: Mapping[str, str] = {}
    """Package -> the version to assume instead of the installed one (`--deepspeed`, `--torch`, `--accelerate` ...)."""
    as_json: bool = False
    """Print JSON (`--json`)."""
    script: str = ""
    """Script to launch, as given on the command line; "" for other commands."""
    plugins: Sequence[str] = ()
    """Modules of `--plugin`."""
    break_lock: bool = False
    """Take over the folders of a run even if it seems to be running (`--break-lock`)."""
    ignored: Collection[str] = ()
    """Ids of warnings that a table of runs suppresses."""

    def ignores(self, problem: Problem) -> bool:
        """Return whether a table of runs suppresses this problem."""
        return problem.severity == "warning" and problem.id in self.ignored

    @classmethod
    def of(cls, options: Namespace, overrides: Sequence[str] = (), script: str = "") -> Request:
        """Build a request from the options of `options.add_files` and `add_json`. overrides: further overrides."""
        return cls(
            options.files,
            [*overrides, *options.set],
            options.conf_dir,
            options.gpus,
            {name: version for name in ASSUMED if (version := getattr(options, name, ""))},
            getattr(options, "json", False),
            script,
            getattr(options, "plugin", ()),  # deepy export has no --plugin
            getattr(options, "break_lock", False),
        )


def is_lock(name: str) -> bool:
    """Return whether a file on the command line is a LOCK_FILE, by its name or, for a renamed copy, its content."""
    if name.endswith(LOCK_FILE):
        return True
    try:
        if not os.path.isfile(name):  # among others a pipe, which can be read only once
            return False
        with open(name, encoding="utf-8", errors="replace") as file:
            return is_lock_text(file.read(1000))
    except (OSError, ValueError):  # an unreadable file, or a name that is not a path
        return False


def is_lock_text(text: str) -> bool:
    """Return whether a text starts as a LOCK_FILE does."""
    return bool(LOCK_START.match(text))
