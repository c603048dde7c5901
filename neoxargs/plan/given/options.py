"""The options of `deepy plan`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

from neoxargs.base.files import Text
from neoxargs.base.options import gpu_count
from neoxargs.base.problems import Problem
from neoxargs.base.record import as_dict
from neoxargs.base.request import Request
from neoxargs.hosts.assumed import GPUS_PER_HOST
from neoxargs.hosts.device_table import DEVICES, NETWORKS
from neoxargs.plan.given.assumptions import list_assumptions
from neoxargs.plan.given.rates import SUFFIX, read_rates
from neoxargs.resolve import Draft, File, draft, read_draft

DESCRIPTION = (
    "Show where each rank runs, how much memory it needs in each phase, and the estimated speed. Starts nothing."
)


class PlanOptions(Request):
    """The configuration to plan, and the devices and hosts to plan it for."""

    per_host: int = GPUS_PER_HOST
    device: str | None = None
    gpu_memory: float | None = None
    """Memory of one device, in GiB."""
    host_memory: float | None = None
    """Memory of one host, in GiB."""
    built_whole: bool = False
    """Whether the script builds its model outside deepspeed.zero.Init, so that ZeRO-3 partitions it afterwards."""
    attention: str = "fused"
    network: float | None = None
    """Bytes per second to other hosts, per GPU."""
    assume: Sequence[str] = ()
    """`KEY=VALUE` strings that replace assumptions."""
    price: float | None = None
    """Of one device for an hour."""
    rates: str | None = None
    """A file that `--learn` wrote; by default, the one beside a configuration file."""
    texts: Sequence[Text] = ()
    """What to plan in place of the files, if another program's script was converted."""
    left_out: Sequence[Problem] = ()
    """What the conversion leaves out."""

    def draft(self) -> Draft:
        """Return the configuration. Raises Problems."""
        if self.texts:
            return draft([File(*text) for text in self.texts], self.overrides)
        return read_draft(self.files, self.directory, self.overrides)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target_arguments(parser)
    parser.add_argument("--html", metavar="FILE", help="also write the plan as an HTML page with charts")
    add_search_arguments(parser.add_argument_group("search").add_argument)
    learn = "find the rates of a machine from the runs whose folders are given as FILE"
    parser.add_argument("--learn", action="store_true", help=learn)


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say for which devices and hosts, and under which assumptions."""
    add = parser.add_argument
    add("--device", metavar="NAME", help=f"plan for this device: {', '.join(DEVICES)}")
    size = partial(positive, expected="a size in GiB")
    add("--gpu-memory", metavar="GIB", type=size, help="set the memory per device, in GiB")
    add("--host-memory", metavar="GIB", type=size, help="set the memory per host, in GiB")
    per_host = f"set the number of GPUs per host, used with --gpus (default: {GPUS_PER_HOST})"
    add("--per-host", metavar="N", type=gpu_count, default=GPUS_PER_HOST, help=per_host)
    add(
        "--built-whole",
        action="store_true",
        help="plan for a script that builds its ZeRO-3 model outside deepspeed.zero.Init",
    )
    unfused = (
        "fused: attention scores are not stored (default); unfused: all scores are stored, as in programs from "
        "2021 or on old GPUs"
    )
    add("--attention", choices=("fused", "unfused"), default="fused", help=unfused)
    networks = f"set the network between hosts, by name or in Gb/s per GPU: {', '.join(NETWORKS)}"
    add("--network", metavar="NAME", type=_network, help=networks)
    rates = f"use the rates of this file, which --learn wrote (default: NAME{SUFFIX} beside a file NAME.yml)"
    add("--rates", metavar="FILE", help=rates)
    add("--assume", metavar="KEY=VALUE", action="append", default=[], help="replace an assumption (repeatable)")
    price = "the price of one device for an hour, in any currency; prints the cost of the run"
    add("--price", metavar="PRICE", type=partial(positive, expected="a price per device and hour"), help=price)
    listing = "list all assumptions with their sources, those of --rates and --assume included, and exit"
    add("--assumptions", action="store_true", help=listing)


def add_search_arguments(add: Callable[..., argparse.Action]) -> None:
    add("--search", action="store_true", help="plan every layout; list the best trade-offs between speed and memory")
    fewest = "try parts of a host, then whole hosts, up to --gpus (default: 1024 GPUs), until a layout fits in memory"
    add("--fewest", action="store_true", help=fewest)
    add("--write", metavar="FILE", help="write the fastest layout, or the rates of --learn, to FILE as YAML")
    add("--left-out", action="store_true", help="list the layouts that were left out, with the reasons")


def answer_assumptions(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Print the assumptions and exit if they are asked for; without them, files are required. Raises Problems."""
    if arguments.assumptions:
        rates = read_rates(arguments.rates) if arguments.rates else None
        learned = rates.values if rates else {}
        print(list_assumptions(learned, rates.path if rates else "", arguments.assume))
        parser.exit()
    if not arguments.files:
        parser.error("the following arguments are required: FILE")


def options_of(arguments: argparse.Namespace) -> PlanOptions:
    """Build the options from those of `base/options.py` and `add_target_arguments`."""
    own = ("per_host", "device", "gpu_memory", "host_memory", "built_whole", "attention", "network", "assume", "price",
           "rates")  # fmt: skip
    return PlanOptions(**as_dict(Request.of(arguments)), **{name: getattr(arguments, name) for name in own})


def _network(text: str) -> float:
    """Return bytes per second of a network given by name or in Gb/s."""
    if text.lower() in NETWORKS:
        return NETWORKS[text.lower()]
    return positive(text, f"one of {', '.join(NETWORKS)}, or a rate in Gb/s") * 1e9 / 8


def positive(text: str, expected: str) -> float:
    """Return a number above 0; raises ArgumentTypeError with what was expected."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return number
