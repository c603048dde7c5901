"""Autotuning and elastic runs: DeepSpeed's sections `autotuning` and `elasticity`."""

from __future__ import annotations

from neoxargs.registry import data_file

data_file.declare(__name__, "autotuning", "autotuning.model_info", "elasticity")
