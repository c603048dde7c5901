"""Configurations of a small model with experts, and layouts that divide them."""

from __future__ import annotations

from typing import Any

from tests.support import trials
from tests.support.layouts import TENSOR
from tests.support.trials import Trial

MOE: dict[str, Any] = {
    "moe_num_experts": 4, "moe_top_k": 2, "moe_router_type": "topk", "moe_expert_interval": 1,
    "moe_aux_loss_coeff": 0.1, "moe_z_loss_coeff": 0.01, "moe_normalize_expert_weights": True,
    "moe_num_shared_experts": 1,
}  # fmt: skip
BY_WIDTH = TENSOR | {"enable_expert_tensor_parallelism": True}
BY_TWO, BY_FOUR = {"moe_expert_parallel_size": 2}, {"moe_expert_parallel_size": 4}


def staged(stage: int, config: dict[str, Any] | None = None) -> Trial:
    return trials.staged(stage, MOE | (config or {}))
