"""Prompts in a file, one per line."""

from __future__ import annotations

from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.base.regular_files import read_regular


def read_prompts(name: str, path: str, place: Place | None = None) -> list[str]:
    """Return the prompts in a file, one per line. name: of the parameter. Raises Problems."""
    try:
        lines = read_regular(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        what = f"{name} ({path}) cannot be read: {error}"
        raise Problems(Problem(what, place, id="prompt-file-unreadable", about=(name,))) from error
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        what, hint = f"{name} ({path}) contains no prompts", "write one prompt per line into this file"
        raise Problems(Problem(what, place, hint, id="prompt-file-empty", about=(name,)))
    return prompts
