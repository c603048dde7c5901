"""What is known of the devices a run can land on: memory, arithmetic, links. From the makers' data sheets.

Arithmetic is dense, without sparsity; fp32 is what torch computes by default, without TF32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from neoxargs.problems import Problem, Problems, did_you_mean
from neoxargs.tools.plan.assumptions import GIB


@dataclass(frozen=True)
class Device:
    """One accelerator of a host."""

    name: str
    memory: int | None
    """Bytes; None where it is not known."""
    half: float
    """Operations per second in fp16 or bf16, accumulated in fp32."""
    single: float
    bandwidth: float
    """Bytes per second to its own memory."""
    neighbours: float
    """Bytes per second to the other devices of the host, in one direction."""
    network: float
    """Bytes per second to other hosts, for one device, in one direction."""
    kind: Literal["cuda", "cpu"] = "cuda"


def _gpu(name: str, gib: int, half: float, single: float, bandwidth: float, links: tuple[float, float]) -> Device:
    return Device(name, gib * GIB, half * 1e12, single * 1e12, bandwidth * 1e9, links[0] * 1e9, links[1] * 1e9)


#: name -> memory GiB, TFLOP/s in 16 bits and fp32, memory GB/s, GB/s to neighbours and to other hosts.
#: The network is the one such hosts are usually sold with: one 100, 200 or 400 Gb/s port for each GPU.
DEVICES = {
    device.name: device
    for device in (
        _gpu("V100-16GB", 16, 125, 15.7, 900, (150, 12.5)),
        _gpu("V100-32GB", 32, 125, 15.7, 900, (150, 12.5)),
        _gpu("A100-40GB", 40, 312, 19.5, 1555, (300, 25)),
        _gpu("A100-80GB", 80, 312, 19.5, 2039, (300, 25)),
        _gpu("H100-80GB", 80, 989, 66.9, 3350, (450, 50)),
        _gpu("H200-141GB", 141, 989, 66.9, 4800, (450, 50)),
        _gpu("RTX4090-24GB", 24, 165, 82.6, 1008, (20, 1.25)),
        # one thread of the machine the measurements in docs/plan.md were made on
        Device("CPU", None, 0.07e12, 0.14e12, 10e9, 2e9, 1.25e9, kind="cpu"),
    )
}
#: Shorter spellings.
ALSO = {"a100": "A100-80GB", "h100": "H100-80GB", "h200": "H200-141GB", "v100": "V100-32GB", "4090": "RTX4090-24GB",
        "rtx4090": "RTX4090-24GB", "cpu": "CPU"}  # fmt: skip
#: What a plan is made for where nobody names a device.
USUAL = "A100-80GB"
#: What it is then called.
UNNAMED = "GPU"


def unnamed() -> Device:
    """Rates of the usual one, and no memory: nobody says which it is."""
    return replace(DEVICES[USUAL], name=UNNAMED, memory=None)


def named(name: str) -> Device:
    """The device of a name, its case and punctuation aside; raises Problems."""
    spelled = {_plain(known): device for known, device in DEVICES.items()}
    spelled |= {_plain(known).removesuffix("gb"): device for known, device in DEVICES.items()}
    found = spelled.get(_plain(ALSO.get(name.lower(), name)))
    if found is None:
        hint = did_you_mean(name, DEVICES) or f"known: {', '.join(DEVICES)}"
        raise Problems([Problem(f"there are no facts about a device {name}", hint=f"{hint}; or give --gpu-memory GIB")])
    return found


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
