"""Descriptions of exit codes and signals of ranks."""

from __future__ import annotations

import contextlib
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

#: Phrases of gloo and NCCL for a collective operation that timed out.
TIMEOUT_PHRASES = ("Timed out waiting", "timed out after", "collective operation timeout", "Application timeout caused")


@dataclass(frozen=True)
class Evidence:
    """What is known of a failed rank besides its exit code."""

    peak_memory: int = 0
    """In bytes."""
    memory_kills: int = 0
    """Number of processes that the system killed for lack of memory while the rank ran."""
    asked_to_stop: bool = False
    killed_because: str = ""
    """Why the supervisor killed the rank; empty if it did not."""
    lock_lost: bool = False
    """Whether it did so because another run has taken over the run's folder: then the run must not go on."""
    left_early: bool = False
    """Whether the process ended with exit code 0 in the middle of its work."""


def describe_exit(code: int, log_tail: str, evidence: Evidence) -> str:
    """Return why a rank ended with this code (negative: a signal). log_tail: the end of its log."""
    if evidence.left_early:
        return "the process exited with code 0 before the run was over"
    if code > 0:
        return f"exit code {code}"
    if evidence.killed_because:
        return evidence.killed_because
    if is_timeout(log_tail):
        return f"{signal_name(-code)} after a collective operation timed out, because a rank did not take part in it"
    why = _why_ended_by(-code, evidence)
    return f"{signal_name(-code)}: {why}" if why else signal_name(-code)


def is_timeout(text: str) -> bool:
    """Return whether a text says that a collective operation timed out."""
    return any(words in text for words in TIMEOUT_PHRASES)


def count_memory_kills() -> int:
    """Return how many processes the kernel of this host has killed for lack of memory; 0 if not known."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            # The counter runs since the start of the machine, so only a difference says something about a rank.
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _why_ended_by(number: int, evidence: Evidence) -> str:
    """Return why a rank usually ends by a signal; "" if nothing is known."""
    if number == signal.SIGKILL:
        peak = f"the peak memory of this rank was {evidence.peak_memory / 1e9:.1f} GB"
        if evidence.memory_kills > 0:
            return f"the host ran out of memory and the system killed the process; {peak}"
        causes = "by a user, by a job scheduler, or because the host ran out of memory (no record of it was found)"
        return f"killed {causes}; {peak}"
    if number == signal.SIGBUS:
        sizes = ""
        with contextlib.suppress(OSError):
            shared = shutil.disk_usage("/dev/shm")
            sizes = f" ({shared.free / 1e9:.2f} GB of {shared.total / 1e9:.2f} GB free)"
            sizes += "; a container can be started with a larger --shm-size"
        return f"usually because /dev/shm is too small{sizes}"
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL):
        return "native code crashed; the log ends with the Python stack that called it"
    return ""


def signal_name(number: int) -> str:
    return next((member.name for member in signal.Signals if member == number), f"signal {number}")
