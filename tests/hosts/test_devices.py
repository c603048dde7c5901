"""The GPUs that CUDA shows are counted as CUDA counts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.hosts.devices import local_devices


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1]),
        ("", []),
        ("1,0", [1, 0]),
        ("0,9,1", [0]),  # CUDA stops at the first number without a GPU
        ("0,-1,1", [0]),
        ("9,0", []),
        ("GPU-8f,1", ["GPU-8f", "1"]),
    ],
)
def test_visible_devices(tmp_path: Path, visible: str | None, expected: list[int] | list[str]) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert local_devices({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, tmp_path) == expected
