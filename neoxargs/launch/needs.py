"""What our train.py needs from this machine before a run may start: files, checkpoints, a device for its precision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from neoxargs.launch.earlier import absent, overwritten
from neoxargs.launch.files import missing_files, unnamed_files
from neoxargs.launch.settle import Settled
from neoxargs.problems import Problem

CPU = Path("/proc/cpuinfo")
#: Instruction sets, as Linux names them, with one of which DeepSpeed computes fp16 on a CPU.
FP16 = ("avx512_fp16", "avx_ne_convert")


def files(settled: Settled) -> list[Problem]:
    """What is missing on this machine; another one may have it."""
    config = settled.config
    return [*missing_files(config), *unnamed_files(config), *absent(config), *_precision(settled)]


def all_needs(settled: Settled) -> list[Problem]:
    """The same, and what a start would destroy."""
    return [*files(settled), *overwritten(settled.config)]


def _precision(settled: Settled) -> Iterator[Problem]:
    config, resources = settled.config, settled.resources
    if config.precision.precision == "fp16" and resources.device == "cpu" and not resources.remote and _lacks_fp16():
        place = config.place("precision") or config.place("fp16.enabled")
        section = " and fp16: {enabled: false}" if config.written("fp16.enabled") else ""
        hint = f"write precision: fp32 or bfloat16{section}"
        yield Problem("this machine's CPU does not compute in fp16", place, hint)


def _lacks_fp16() -> bool:
    """False where that is not known."""
    try:
        flags = CPU.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return not any(name in flags for name in FP16)
