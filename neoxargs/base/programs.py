"""The script that a launch starts, and whether it is a shipped program, whose needs and limits are known.

GPT-NeoX's scripts have the same names as the shipped programs. A file at the given path takes precedence; otherwise the
shipped program with that name is started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from neoxargs.base.problems import Problem, Problems, did_you_mean, listed
from neoxargs.base.shipped import SHIPPED

Program = Literal["train", "generate", "eval"]
#: The shipped programs by file name.
PROGRAMS: dict[str, Program] = {"train.py": "train", "generate.py": "generate", "eval.py": "eval"}


class Script(NamedTuple):
    """The script that every rank runs."""

    path: str
    program: Program | None = None
    """Which of the shipped programs it is; None for a user's script."""


def find_script(name: str) -> Script:
    """Return the script at that path, or else the shipped program of that name; raises Problems."""
    for path in (Path(name), SHIPPED / name):
        if path.is_file():
            return Script(str(path), program_of(path))
    local = sorted(path.name for path in Path().glob("*.py"))
    scripts = dict.fromkeys([*PROGRAMS, *local])
    hint = did_you_mean(name, scripts) or f"pass {listed(scripts)}"
    raise Problems([Problem(f"there is no script {name}", hint=hint, id="script-missing")])


def program_of(path: Path) -> Program | None:
    """Return the shipped program that a file is, in any checkout; None for another file."""
    shipped = SHIPPED / path.name
    is_shipped = path.name in PROGRAMS and shipped.is_file() and path.read_bytes() == shipped.read_bytes()
    return PROGRAMS[path.name] if is_shipped else None
