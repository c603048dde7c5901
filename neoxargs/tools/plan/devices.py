"""The devices a run can land on, a row each: memory, arithmetic, links. From the makers' data sheets.

Arithmetic is dense, without sparsity; fp32 is what torch computes by default, without TF32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from neoxargs.problems import Problem, Problems, did_you_mean
from neoxargs.text import GIB


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
    aliases: tuple[str, ...] = ()
    """Shorter spellings, beside the name without its punctuation or its `GB`."""
    kind: Literal["cuda", "cpu"] = "cuda"


def _gpu(
    name: str, gib: int, half: float, single: float, bandwidth: float, links: tuple[float, float], *aliases: str
) -> Device:
    neighbours, network = links
    return Device(
        name, gib * GIB, half * 1e12, single * 1e12, bandwidth * 1e9, neighbours * 1e9, network * 1e9, aliases
    )


#: name, memory GiB, TFLOP/s in 16 bits and fp32, memory GB/s, GB/s to neighbours and to other hosts, aliases.
#: The network is the one such hosts are usually sold with: one 100, 200 or 400 Gb/s port for each GPU.
DEVICES = {
    device.name: device
    for device in (
        _gpu("V100-16GB", 16, 125, 15.7, 900, (150, 12.5)),
        _gpu("V100-32GB", 32, 125, 15.7, 900, (150, 12.5), "v100"),
        _gpu("A100-40GB", 40, 312, 19.5, 1555, (300, 25)),
        _gpu("A100-80GB", 80, 312, 19.5, 2039, (300, 25), "a100"),
        _gpu("H100-80GB", 80, 989, 66.9, 3350, (450, 50), "h100"),
        _gpu("H200-141GB", 141, 989, 66.9, 4800, (450, 50), "h200"),
        _gpu("RTX4090-24GB", 24, 165, 82.6, 1008, (20, 1.25), "4090", "rtx4090"),
        # one thread of the machine the measurements in docs/plan.md were made on
        Device("CPU", None, 0.07e12, 0.14e12, 10e9, 2e9, 1.25e9, kind="cpu"),
    )
}
#: Whose rates a plan assumes where nobody names a device.
ASSUMED_DEVICE = "A100-80GB"
#: What the device is then called.
UNKNOWN_NAME = "GPU"


def unknown_device() -> Device:
    """The rates of ASSUMED_DEVICE, and no memory."""
    return replace(DEVICES[ASSUMED_DEVICE], name=UNKNOWN_NAME, memory=None)


def find_device(name: str) -> Device:
    """The device of a name or an alias, case and punctuation aside; raises Problems."""
    found = _by_spelling().get(_normalized(name))
    if found is None:
        hint = did_you_mean(name, DEVICES) or f"known: {', '.join(DEVICES)}"
        what, hint = f"there are no facts about a device {name}", f"{hint}; or give --gpu-memory GIB"
        raise Problems([Problem(what, hint=hint, id="unknown-device")])
    return found


def _by_spelling() -> dict[str, Device]:
    spellings = {}
    for name, device in DEVICES.items():
        plain = _normalized(name)
        for spelling in (plain, plain.removesuffix("gb"), *map(_normalized, device.aliases)):
            spellings[spelling] = device
    return spellings


def _normalized(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
