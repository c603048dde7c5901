"""The peak rate that utilisation is measured against."""

from __future__ import annotations

import pytest

from neoxargs.train.run import peak_tflops
from tests.support.configure import configure


@pytest.mark.parametrize(
    ("gpu", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989),
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA H100 80GB HBM3", "fp32", None),  # depends on TF32
        ("NVIDIA GeForce GTX 1080", "fp16", None),
        ("", "bfloat16", None),
    ],
)
def test_a_known_gpu_in_16_bits_has_a_peak_rate(gpu: str, precision: str, peak: float | None) -> None:
    assert peak_tflops(configure(f"precision: {precision}"), gpu) == peak
