"""Memory, compute rate and links of each known device, from the data sheets of the vendors.

Compute rates are dense (no structured sparsity); fp32 rates are without TF32, torch's default.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from neoxargs.base.problems import Problem, Problems, did_you_mean
from neoxargs.base.text import GIB


@dataclass(frozen=True)
class Device:
    """One accelerator of a host."""

    name: str
    memory: int | None
    """Bytes; None if unknown."""
    half: float
    """Operations per second in fp16 or bf16, accumulated in fp32."""
    single: float
    """Operations per second in fp32."""
    bandwidth: float
    """Bytes per second between the device and its memory."""
    neighbours: float
    """Bytes per second to the other devices of its host, in one direction."""
    network: float
    """Bytes per second to other hosts, per device, in one direction."""
    aliases: tuple[str, ...] = ()
    """Other names. `name` is also accepted without punctuation or without `GB`."""
    kind: Literal["cuda", "cpu"] = "cuda"
    generation: int = 8
    """Major version of the CUDA compute capability: 7 for the V100, 8 for the A100, 9 for the H100."""


def _gpu(
    name: str, gib: int, rates: tuple[float, float], bandwidth: float, links: tuple[float, float], *aliases: str
) -> Device:
    (half, single), (neighbours, network) = rates, links
    generation = next(number for prefix, number in GENERATIONS if name.startswith(prefix))
    return Device(
        name, gib * GIB, half * 1e12, single * 1e12, bandwidth * 1e9, neighbours * 1e9, network * 1e9, aliases,
        generation=generation,
    )  # fmt: skip


#: Start of a device's name, and its generation.
GENERATIONS = (("V", 7), ("A", 8), ("RTX4090", 8), ("L", 8), ("H", 9), ("B", 10), ("GB", 10))


#: name, memory in GiB, TFLOP/s (in 16 bits, in fp32), GB/s to memory, (GB/s to neighbours, to other hosts), aliases.
#: Network rates assume what such hosts are usually sold with: one port of 100, 200 or 400 Gb/s per GPU.
DEVICES = {
    device.name: device
    for device in (
        _gpu("V100-16GB", 16, (125, 15.7), 900, (150, 12.5)),
        _gpu("V100-32GB", 32, (125, 15.7), 900, (150, 12.5), "v100"),
        _gpu("A100-40GB", 40, (312, 19.5), 1555, (300, 25)),
        _gpu("A100-80GB", 80, (312, 19.5), 2039, (300, 25), "a100"),
        _gpu("H100-80GB", 80, (989, 66.9), 3350, (450, 50), "h100"),
        _gpu("H100-96GB", 96, (989, 66.9), 2400, (450, 50), "h100-96gb-hbm2e", "h100-94gb"),  # HBM2e
        _gpu("H100PCIe-80GB", 80, (756, 51), 2000, (64, 25), "h100-pcie"),
        _gpu("H200-141GB", 141, (989, 66.9), 4800, (450, 50), "h200"),
        _gpu("B200-180GB", 180, (2250, 75), 7700, (900, 50), "b200"),
        _gpu("GB200-186GB", 186, (2500, 80), 8000, (900, 50), "gb200"),
        _gpu("RTX4090-24GB", 24, (165, 82.6), 1008, (20, 1.25), "4090", "rtx4090"),
        # measured with one thread of the machine that ran the measurements in docs/plan.md
        Device("CPU", None, 0.07e12, 0.14e12, 10e9, 2e9, 1.25e9, kind="cpu"),
    )
}
#: Rates of networks for --network: bytes per second in one direction, per GPU.
NETWORKS = {
    "ndr": 50e9, "hdr": 25e9, "edr": 12.5e9, "omni-path": 12.5e9, "roce-400": 50e9, "roce-200": 25e9, "efa": 50e9,
    "ethernet-100": 12.5e9, "ethernet-25": 3.125e9, "ethernet-10": 1.25e9, "ethernet-1": 0.125e9,
}  # fmt: skip
#: The device whose rates a plan assumes when none is named.
ASSUMED_DEVICE = "A100-80GB"
#: Name of an unnamed device in the output.
UNKNOWN_NAME = "GPU"


def unknown_device() -> Device:
    """Return a device with the rates of ASSUMED_DEVICE and unknown memory."""
    return replace(DEVICES[ASSUMED_DEVICE], name=UNKNOWN_NAME, memory=None)


def find_device(name: str) -> Device:
    """Return the device of this name or alias, ignoring case and punctuation; raises Problems if there is none."""
    wanted = normalized(name)
    for device in DEVICES.values():
        plain = normalized(device.name)
        if wanted in (plain, plain.removesuffix("gb"), *map(normalized, device.aliases)):
            return device
    hint = did_you_mean(name, DEVICES) or f"expected one of: {', '.join(DEVICES)}."
    hint = f"{hint} For a device that is not listed, use deepy plan --gpu-memory GIB"
    raise Problems([Problem(f"unknown device: {name}", hint=hint, id="unknown-device")])


def reported_device(name: str) -> Device | None:
    """Return the device for a name that torch or nvidia-smi reports, such as `NVIDIA A100-SXM4-80GB`.

    None for a device that is not listed.
    """
    reported = normalized(name)
    rows = [row for row in DEVICES.values() if row.kind == "cuda" and row.name.split("-")[0].lower() in reported]
    exact = [row for row in rows if row.name.split("-")[1].lower() in reported]
    # The last row of a type has the most memory.
    return next(reversed(exact or rows), None)


def other_sizes(name: str) -> list[str]:
    """Return the devices that a short name, such as A100 for A100-80GB, could stand for too; none for a full name."""
    found, model = find_device(name).name, normalized(name)
    return [other for other in DEVICES if other != found and normalized(other.partition("-")[0]) == model]


def normalized(name: str) -> str:
    """Return the name in lower case, without punctuation."""
    return "".join(letter for letter in name.lower() if letter.isalnum())
