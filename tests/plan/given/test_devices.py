"""Devices by name and alias."""

from __future__ import annotations

import pytest

from neoxargs.base.problems import Problems
from neoxargs.plan.given.devices import DEVICES, find_device


def test_devices_have_short_names() -> None:
    assert find_device("a100-40gb") is find_device("A100 40") is DEVICES["A100-40GB"]
    assert find_device("H200") is DEVICES["H200-141GB"]
    with pytest.raises(Problems, match="A100-40GB"):
        find_device("A100-41GB")
