"""The options of `deepy plan`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from neoxargs.options import gpu_count
from neoxargs.request import Request
from neoxargs.tools.plan.placement import GPUS_PER_HOST

DESCRIPTION = (
    "Show where each rank runs, how much memory it needs in each phase, and the estimated speed. Starts nothing."
)


@dataclass(frozen=True)
class PlanOptions(Request):
    """The configuration to plan, and the devices and hosts to plan it for."""

    per_host: int = GPUS_PER_HOST
    device: str | None = None
    gpu_memory: float | None = None
    """GiB of one device."""
    host_memory: float | None = None
    """GiB of one host."""
    built_whole: bool = False
    """Whether the script builds its model outside deepspeed.zero.Init, and ZeRO-3 partitions it afterwards."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", metavar="NAME", help="plan for this device: A100-40GB, A100-80GB, H100, H200, V100-32GB, 4090, CPU")
    add("--gpu-memory", metavar="GIB", type=_gibibytes, help="set the memory of one device, in GiB")
    add("--host-memory", metavar="GIB", type=_gibibytes, help="set the memory of one host, in GiB")
    per_host = f"set the number of GPUs per host, used with --gpus (default: {GPUS_PER_HOST})"
    add("--per-host", metavar="N", type=gpu_count, default=GPUS_PER_HOST, help=per_host)
    add(
        "--built-whole",
        action="store_true",
        help="plan for a script that builds its ZeRO-3 model outside deepspeed.zero.Init",
    )
    add("--html", metavar="FILE", help="also write the plan as an HTML page with charts")


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
        raise argparse.ArgumentTypeError(f"expected a size in GiB, got {text!r}")
    return amount
