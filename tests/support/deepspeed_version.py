"""What the installed DeepSpeed has, for tests that run with every version of the range."""

from __future__ import annotations

import deepspeed
import pytest

from neoxargs.checks.receivers import LAST_WITH_ONEBIT
from neoxargs.registry import receivers
from neoxargs.registry.receivers import numbers

#: DeepSpeed 0.19.7 removed the 1-bit optimizers.
HAS_ONEBIT = numbers(deepspeed.__version__) <= numbers(LAST_WITH_ONEBIT)
needs_onebit = pytest.mark.skipif(not HAS_ONEBIT, reason="this DeepSpeed has no 1-bit optimizers")


def has_key(name: str) -> bool:
    """Whether the installed DeepSpeed has not removed a key."""
    went = receivers.removed_in(name)
    return not went or numbers(deepspeed.__version__) < numbers(went)
