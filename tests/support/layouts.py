"""Layouts, recomputation and precisions of trials: changes of parameters, and sections of DeepSpeed's JSON."""

from __future__ import annotations

from typing import Any

PIPE, TWO_STAGES, TENSOR = {"pipe_parallel_size": 1}, {"pipe_parallel_size": 2}, {"model_parallel_size": 2}
RECOMPUTE = {"checkpoint_activations": True}
BF16: dict[str, Any] = {"bf16": {"enabled": True}}
FP16: dict[str, Any] = {"fp16": {"enabled": True, "initial_scale_power": 8}}
