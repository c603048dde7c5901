"""Precision in DeepSpeed's JSON: sections `fp16`, `bf16`, `amp`, `torch_autocast` and `data_types`."""

from __future__ import annotations

from neoxargs.registry import data_file

data_file.declare(__name__, "fp16", "bf16", "amp", "torch_autocast", "data_types")
