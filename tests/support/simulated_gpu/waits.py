"""Operations that make the host wait for the GPU, with the line that calls them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from tests.support.paths import ROOT
from tests.support.simulated_gpu.start import LISTENER, device

#: Files whose lines are skipped, because they only forward calls.
_FORWARDING = ("tests/support/simulated_gpu/", "torch/", "deepspeed/accelerator/")


class Wait(NamedTuple):
    """One operation for which the host waits until the GPU has finished its work."""

    what: str
    """`item`, `synchronize`, `blocking copy to device`, ..."""
    where: str
    """The line that calls it and, if that is in a library, the line of neoxargs that called the library."""

    @property
    def is_copy(self) -> bool:
        """Whether it is a blocking copy between host and device."""
        return "copy" in self.what


def listed(waits: list[Wait]) -> str:
    """Return one line per place, the most frequent first, for the message of a failing test."""
    return "\n".join(f"{count} x {wait.what} at {wait.where}" for wait, count in Counter(waits).most_common())


@contextmanager
def recorded() -> Iterator[list[Wait]]:
    """Record the waits of this process within the block."""
    found: list[Wait] = []

    def record(what: bytes) -> None:
        found.append(Wait(what.decode(), _where(sys._getframe())))

    callback = LISTENER(record)
    device().simulated_listen(callback)
    try:
        yield found
    finally:
        device().simulated_listen(None)


def _where(frame: FrameType | None) -> str:
    """Return the place, such as `deepspeed/runtime/utils.py:306, from neoxargs/train/engine/steps.py:71`."""
    lines = []
    while frame:
        path = _short(frame.f_code.co_filename)
        if not path.startswith(_FORWARDING):
            lines.append((path, frame.f_lineno))
        frame = frame.f_back
    if not lines:
        return "backward pass, in a thread of autograd"
    ours = next((line for line in lines if line[0].startswith("neoxargs/")), lines[0])
    places = [f"{path}:{number}" for path, number in ([lines[0]] if ours == lines[0] else [lines[0], ours])]
    return ", from ".join(places)


def _short(path: str) -> str:
    """Return the path relative to the repository or site-packages."""
    return path.split("site-packages/")[-1].removeprefix(f"{ROOT}/")
