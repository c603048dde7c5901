"""Layouts, recomputation and precisions of trials: changes of parameters, and sections of DeepSpeed's JSON."""

from __future__ import annotations

from typing import Any

PIPE, TWO_STAGES, TENSOR = {"pipe_parallel_size": 1}, {"pipe_parallel_size": 2}, {"model_parallel_size": 2}
SHARDS = TENSOR | {"sequence_parallel": True}
RECOMPUTE = {"checkpoint_activations": True}
DOCUMENTS = {"reset_position_ids": True, "reset_attention_mask": True}
SPARSE = {"block": 2, "num_random_blocks": 1, "num_sliding_window_blocks": 1, "different_layout_per_head": True}
RPE = {"pos_emb": "rpe", "rpe_num_buckets": 6, "rpe_max_distance": 12}
BF16: dict[str, Any] = {"bf16": {"enabled": True}}
FP16: dict[str, Any] = {"fp16": {"enabled": True, "initial_scale_power": 8}}


def zero(stage: int) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage}}
