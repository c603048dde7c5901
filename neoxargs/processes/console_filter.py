"""Filter for what a rank prints: lines of torch and DeepSpeed that tell the user nothing stay out of the console.

The rank's log has them all, and `log_level: info` or `debug` shows them on the console too.
"""

from __future__ import annotations

import re

from neoxargs.config.config import Config

#: The levels of `log_level` that show every line.
SHOW_ALL = ("debug", "info")
#: Lines that need no action: what prints them, and why the run is not affected. Anything else is shown, errors and
#: unknown warnings included.
NOISE = tuple(
    re.compile(pattern)
    for pattern in (
        # DeepSpeed 0.19: its schedules are asked for a rate once before the first step, on every rank.
        rb"\[WARNING\] \[lr_schedules\.py:\d+:get_lr\] Attempting to get learning rate from scheduler before it has",
        # torch's gloo backend, on every rank and for every process group: all of its connections are up.
        rb"^\[Gloo\] Rank (\d+) is connected to (\d+) peer ranks\. Expected number of connected peer ranks is : \2\s*$",
        # torch 2: the name of a host is only looked up to be logged.
        rb"\[c10d\] The hostname of the client socket cannot be retrieved",
        # torch 2.6 and newer with NCCL: the first collective does not name a GPU; each rank has set its own before.
        rb"using GPU \d+ as device used by this process is currently unknown",
        rb"No device id is provided via `init_process_group` or `barrier",
        # torch with NCCL: a rank that failed does not leave its process group; why it failed is reported.
        rb"destroy_process_group\(\) was not called before program exit",
        # torch 2: announces that the stack of a C++ error is being collected; the error itself follows.
        rb"symbolizing C\+\+ stack trace for exception; if this hangs, rerun with",
    )
)
#: An unfinished line that may become one of `NOISE`, such as `[2026-11-22 ...`, `[rank0]:[W1122 ...`, `[W1122 ...` or
#: `[Gloo] ...`, but not a progress bar such as `[###   ]`.
LOGGER_LINE = re.compile(rb"\[([\drWIG][^\r]{0,4096})?")


def shows_all(config: Config) -> bool:
    """Return whether the configuration asks for every line."""
    return config.is_set("log_level") and config.get("log_level") in SHOW_ALL


class ConsoleFilter:
    """Removes the lines of `NOISE` from a stream of bytes that arrives in pieces.

    An unfinished line is passed on at once, because a progress bar does not end its lines, unless it could become a
    line of `NOISE`; such a line is held until its end.
    """

    def __init__(self) -> None:
        self._held = b""
        self._inside_line = False
        """Whether the start of the current line has already been passed on."""

    def feed(self, data: bytes) -> bytes:
        """Return what of the data, and of what was held, is for the console."""
        *lines, rest = (self._held + data).split(b"\n")
        self._held, passed = b"", []
        for line in lines:
            if self._inside_line or not any(pattern.search(line) for pattern in NOISE):
                passed.append(line + b"\n")
            self._inside_line = False
        if rest and not self._inside_line and LOGGER_LINE.fullmatch(rest):
            self._held = rest
        elif rest:
            passed.append(rest)
            self._inside_line = True
        return b"".join(passed)

    def finish(self) -> bytes:
        """Return an unfinished line that was held."""
        held, self._held = self._held, b""
        return held
