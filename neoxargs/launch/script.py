"""Which script a launch starts, and whether it is one of ours: only of those is known what they need and can do.

GPT-NeoX's scripts have the names of ours. A file at the path that was written is what runs; where there is none, the
script of ours with that name does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from neoxargs.problems import Problem, Problems, did_you_mean
from neoxargs.shipped import SHIPPED

Program = Literal["train", "generate", "eval"]
#: Our scripts by name.
PROGRAMS: dict[str, Program] = {"train.py": "train", "generate.py": "generate", "eval.py": "eval"}


@dataclass(frozen=True)
class Script:
    """What every rank runs."""

    path: str
    program: Program | None = None
    """Which of our programs it is; None: the user's own."""


def find_script(name: str) -> Script:
    """The script at that path, or else ours of that name; raises Problems."""
    ours = SHIPPED / name
    for path in (Path(name), ours):
        if path.is_file():
            return Script(str(path), _program(path))
    here = sorted(path.name for path in Path().glob("*.py"))
    hint = did_you_mean(name, dict.fromkeys([*here, *PROGRAMS])) or f"here: {', '.join(here) or 'no .py file'}"
    raise Problems([Problem(f"there is no script {name}", hint=hint, id="script-missing")])


def _program(path: Path) -> Program | None:
    """Which of ours it is; another checkout's is ours too."""
    ours = SHIPPED / path.name
    is_ours = path.name in PROGRAMS and ours.is_file() and path.read_bytes() == ours.read_bytes()
    return PROGRAMS[path.name] if is_ours else None
