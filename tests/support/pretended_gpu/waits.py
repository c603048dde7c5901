"""What makes the host wait for the GPU, and who asks for it."""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from tests.support.paths import ROOT
from tests.support.pretended_gpu.start import device

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
#: Files that pass on what others ask for.
_PASSING_ON = ("tests/support/pretended_gpu/", "torch/", "deepspeed/accelerator/")


class Wait(NamedTuple):
    """One moment in which the host waits until the GPU has done all that it was given."""

    what: str
    """`item`, `synchronize`, `blocking copy to device`, ..."""
    where: str
    """The line that causes it and, where that is a library's, our line that leads there."""

    @property
    def is_copy(self) -> bool:
        """Is a tensor copied between host and device, and is that waited for?"""
        return "copy" in self.what


def listed(waits: list[Wait]) -> str:
    """A line for each place, the most frequent first, for the message of a test that fails."""
    return "\n".join(f"{count} x {wait.what} at {wait.where}" for wait, count in Counter(waits).most_common())


@contextmanager
def recorded() -> Iterator[list[Wait]]:
    """All waits of this process within the block."""
    found: list[Wait] = []

    def hear(what: bytes) -> None:
        found.append(Wait(what.decode(), _where(sys._getframe())))

    callback = _CALLBACK(hear)
    device().pretended_listen(callback)
    try:
        yield found
    finally:
        device().pretended_listen(None)


def _where(frame: FrameType | None) -> str:
    """`deepspeed/runtime/utils.py:306, from neoxargs/train/engine/steps.py:71`."""
    lines = []
    while frame:
        path = _short(frame.f_code.co_filename)
        if not path.startswith(_PASSING_ON):
            lines.append((path, frame.f_lineno))
        frame = frame.f_back
    if not lines:
        return "backward, in a thread of autograd's"
    ours = next((line for line in lines if line[0].startswith("neoxargs/")), lines[0])
    told = [f"{path}:{number}" for path, number in ([lines[0]] if ours == lines[0] else [lines[0], ours])]
    return ", from ".join(told)


def _short(path: str) -> str:
    """Below the repository or site-packages."""
    return path.split("site-packages/")[-1].removeprefix(f"{ROOT}/")
