"""megatron-core's schedule of the learning rate and the weight decay."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


def beside_megatron(test: Any) -> Any:
    """Mark a test that runs megatron-core: importing it takes ten seconds, and warns of packages that it can lack."""
    return pytest.mark.slow(pytest.mark.filterwarnings("ignore")(test))


def megatron_schedule(group: dict[str, float], **changes: Any) -> Any:
    """Return a scheduler that sets `lr` in a group of weights at each step, of a constant rate by default."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    usual: dict[str, Any] = {
        "init_lr": 0.0, "max_lr": 1e-3, "min_lr": 0.0, "lr_warmup_steps": 0, "lr_decay_steps": 1000,
        "lr_decay_style": "constant", "start_wd": 0.0, "end_wd": 0.0, "wd_incr_steps": 0, "wd_incr_style": "constant",
    }  # fmt: skip
    return OptimizerParamScheduler(SimpleNamespace(param_groups=[group]), **usual | changes)
