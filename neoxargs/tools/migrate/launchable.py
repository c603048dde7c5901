"""What train.py cannot run yet of a new file, told when it is made and not only when it is launched."""

from __future__ import annotations

from dataclasses import replace

from neoxargs.problems import Problem, Problems
from neoxargs.resolve import Text, complete, draft
from neoxargs.resolve.config import Config
from neoxargs.resolve.derive import Unresolved
from neoxargs.resolve.trainer_support.unsupported import unsupported


def not_launchable(new: Text) -> list[Problem]:
    """What `check` would refuse, as warnings: the file is right, and another script may run it."""
    config = _known(new)
    refused = [problem for problem in unsupported(config) if problem.severity == "error"] if config else []
    return [replace(problem, severity="warning") for problem in refused]


def _known(new: Text) -> Config | None:
    """What is certain without the machine, and although a model may still be missing."""
    try:
        return complete(draft([new]), None)
    except Unresolved as stop:
        return stop.certain
    except Problems:
        return None
