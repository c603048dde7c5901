"""The command line of `deepy plan` beside the files."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from neoxargs.options import gpu_count
from neoxargs.request import Request
from neoxargs.tools.plan.placement import GPUS_PER_HOST

DESCRIPTION = "Who sits on which rank, how full devices get and when, how fast it can be. Starts nothing."


@dataclass(frozen=True)
class PlanOptions(Request):
    """Which configuration is planned, and for which devices and hosts."""

    per_host: int = GPUS_PER_HOST
    device: str | None = None
    gpu_memory: float | None = None
    """GiB of one device."""
    host_memory: float | None = None
    """GiB of one host."""
    built_whole: bool = False
    """Whether the script builds a ZeRO-3 model before it is partitioned."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", metavar="NAME", help="such as A100-40GB, A100-80GB, H100, H200, V100-32GB, 4090 or CPU")
    add("--gpu-memory", metavar="GIB", type=_gibibytes, help="memory of one device")
    add("--host-memory", metavar="GIB", type=_gibibytes, help="memory of one machine")
    per_host = f"with --gpus: GPUs a machine ({GPUS_PER_HOST})"
    add("--per-host", metavar="N", type=gpu_count, default=GPUS_PER_HOST, help=per_host)
    add("--built-whole", action="store_true", help="the script builds a ZeRO-3 model before it is divided")
    add("--html", metavar="FILE", help="also write the plan as a page with pictures")


def options_of(arguments: argparse.Namespace) -> PlanOptions:
    return PlanOptions(
        files=arguments.files,
        overrides=arguments.set,
        directory=arguments.conf_dir,
        gpus=arguments.gpus,
        as_json=arguments.json,
        per_host=arguments.per_host,
        device=arguments.device,
        gpu_memory=arguments.gpu_memory,
        host_memory=arguments.host_memory,
        built_whole=arguments.built_whole,
    )


def _gibibytes(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = 0.0
    if not 0 < amount < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in GiB")
    return amount
