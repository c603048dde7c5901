"""The command line of `deepy plan` beside the files."""

from __future__ import annotations

import argparse

from neoxargs.options import count
from neoxargs.tools.plan.placement import PER_HOST

DESCRIPTION = "Who sits on which rank, how full devices get and when, how fast it can be. Starts nothing."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", metavar="NAME", help="such as A100-40GB, A100-80GB, H100, H200, V100-32GB, 4090 or CPU")
    add("--gpu-memory", metavar="GIB", type=_amount, help="memory of one device")
    add("--host-memory", metavar="GIB", type=_amount, help="memory of one machine")
    add("--per-host", metavar="N", type=count, default=PER_HOST, help=f"with --gpus: GPUs a machine ({PER_HOST})")
    add("--built-whole", action="store_true", help="the script builds a ZeRO-3 model before it is divided")
    add("--html", metavar="FILE", help="also write the plan as a page with pictures")


def _amount(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = 0.0
    if not 0 < amount < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in GiB")
    return amount
