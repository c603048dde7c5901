"""What a rank's exit code or signal means, in a sentence."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: How gloo and nccl word that another rank does not answer.
TIMEOUT_PHRASES = ("Timed out waiting", "timed out after", "collective operation timeout", "Application timeout caused")


@dataclass(frozen=True)
class Evidence:
    """What is known of a rank besides its exit code."""

    peak_memory: int = 0
    """The most memory it held, in bytes."""
    memory_kills: int = 0
    """How many processes the system has killed for memory meanwhile."""
    asked_to_stop: bool = False


def describe_exit(code: int, log_tail: str, evidence: Evidence) -> str:
    """Why a rank ended with this code (negative: of a signal); log_tail: the end of its log."""
    if code > 0:
        return f"exit code {code}"
    if is_timeout(log_tail):
        return f"{signal_name(-code)} after a collective operation timed out: some rank did not take part in it"
    return _SIGNALS.get(-code, _other)(evidence).format(name=signal_name(-code))


def is_timeout(text: str) -> bool:
    """Does a text say that a collective operation timed out?"""
    return any(words in text for words in TIMEOUT_PHRASES)


def count_memory_kills() -> int:
    """How many processes this host has killed because memory ran out."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _killed(evidence: Evidence) -> str:
    held = f"this rank held up to {evidence.peak_memory / 1e9:.1f} GB"
    if evidence.memory_kills > 0:
        return f"{{name}}: the host ran out of memory and the system killed it; {held}"
    return f"{{name}}: somebody killed it, or the host ran out of memory (the system has not counted that); {held}"


def _bus_error(evidence: Evidence) -> str:
    with contextlib.suppress(OSError):
        shared = shutil.disk_usage("/dev/shm")
        sizes = f" ({shared.free / 1e9:.2f} GB of {shared.total / 1e9:.2f} are free)"
        return f"{{name}}: usually /dev/shm is too small{sizes}; a container gets more with --shm-size"
    return "{name}: usually /dev/shm is too small"


def _crashed(evidence: Evidence) -> str:
    return "{name}: native code crashed; its log ends with the Python lines that called it"


def _other(evidence: Evidence) -> str:
    return "{name}"


_SIGNALS: dict[int, Callable[[Evidence], str]] = {
    signal.SIGKILL: _killed,
    signal.SIGBUS: _bus_error,
    signal.SIGSEGV: _crashed,
    signal.SIGABRT: _crashed,
    signal.SIGFPE: _crashed,
    signal.SIGILL: _crashed,
}


def signal_name(number: int) -> str:
    return next((member.name for member in signal.Signals if member == number), f"signal {number}")
