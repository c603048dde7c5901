"""The plan's count of what ranks send each other to divide experts is what they send.

Every token is sent to all experts, so that the ranks have equal loads.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed as dist

from neoxargs.plan.given.assumptions import Assumptions
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.stages import pipeline_stages
from neoxargs.plan.time.communication import expert_messages
from tests.support.ranks import run_ranks
from tests.support.trials import MICRO_BATCH, SAMPLES, Trial, started

EXPERTS: dict[str, Any] = {"moe_num_experts": 4, "moe_top_k": 4, "moe_expert_parallel_size": 2, "precision": "fp32"}
TRIALS = {
    "plain": Trial(EXPERTS),
    "recomputed": Trial(EXPERTS | {"checkpoint_activations": True}),
    "every second layer": Trial(EXPERTS | {"moe_expert_interval": 2}),
}
Sizes = Counter[int]


def sent(trials: dict[str, Trial]) -> dict[str, tuple[Sizes, Sizes]]:
    """Return for each trial how often a step has sent tensors of which size, and how often the plan expects it."""
    exchange, found = dist.all_to_all_single, {}
    for name, training in started(trials, train_micro_batch_size_per_gpu=MICRO_BATCH, world_size=2):
        sizes = Counter[int]()

        def counted(output: Any, tensor: Any, *arguments: Any, to: Sizes = sizes, **keywords: Any) -> Any:
            to[tensor.numel() * tensor.element_size()] += 1
            return exchange(output, tensor, *arguments, **keywords)

        with patch.object(dist, "all_to_all_single", counted):
            training.step()
        plan = ActivationSizes(training.config, "cpu", Assumptions(expert_imbalance=1.0))
        [stage] = pipeline_stages(training.config, 64)
        micro_batches = SAMPLES // MICRO_BATCH // 2
        messages = expert_messages(plan, stage).items()
        found[name] = sizes, Counter({message.size: count * micro_batches for message, count in messages})
    return found


@pytest.mark.slow
def test_the_plan_counts_what_ranks_exchange() -> None:
    for rank in run_ranks(sent, 2, TRIALS):
        for name, (sizes, planned) in rank.items():
            assert sizes == planned, name
