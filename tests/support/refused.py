"""What a call refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from neoxargs.base.problems import Problem, Problems


def refused(function: Callable[..., Any], *arguments: Any, **named: Any) -> list[Problem]:
    """Call the function, which must raise Problems, and return them."""
    with pytest.raises(Problems) as stop:
        function(*arguments, **named)
    return stop.value.problems


def ids(problems: Iterable[Problem]) -> list[str]:
    return [problem.id for problem in problems]
