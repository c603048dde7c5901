"""One test of thousands of short cases: pytest takes longer to prepare and report each of them than it takes to run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")


def for_each(
    values: Iterable[T], name: Callable[[T], str] = str
) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Call a test with each value, and report all that failed, by name."""

    def decorate(test: Callable[[T], None]) -> Callable[[], None]:
        def all_cases() -> None:
            failed, cases = {}, list(values)
            for value in cases:
                try:
                    test(value)
                except Exception as error:
                    failed[name(value)] = f"{type(error).__name__}: {error}"
            assert cases
            if failed:
                pytest.fail("\n".join(f"{case}: {why}" for case, why in failed.items()), pytrace=False)

        all_cases.__name__, all_cases.__doc__, all_cases.__module__ = test.__name__, test.__doc__, test.__module__
        return all_cases

    return decorate
