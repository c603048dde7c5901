"""Devices by name and alias."""

from __future__ import annotations

import pytest

from neoxargs.hosts.device_table import DEVICES, find_device, reported_device
from tests.support.refused import refused
from tests.support.snapshots import pinned


def test_devices_have_short_names() -> None:
    assert find_device("a100-40gb") is find_device("A100 40") is DEVICES["A100-40GB"]
    assert find_device("H200") is DEVICES["H200-141GB"]
    pinned(refused(find_device, "A100-41GB"))


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA H100 PCIe", "H100PCIe-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("NVIDIA H200", "H200-141GB"),
        ("NVIDIA GeForce RTX 4090", "RTX4090-24GB"),
    ],
)
def test_a_device_is_found_by_the_name_that_the_gpu_reports(reported: str, name: str) -> None:
    device = reported_device(reported)
    assert device and device.name == name


def test_an_unlisted_device_has_no_rates() -> None:
    assert reported_device("NVIDIA GeForce GTX 1080") is None
