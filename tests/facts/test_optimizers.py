"""The counts of `facts/optimizers.py` equal the state of the built optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from neoxargs.facts.optimizers import _KINDS, moments
from neoxargs.facts.timeline import checkpoint_bytes
from neoxargs.plan.memory.stages import pipeline_stages
from neoxargs.plan.memory.states import ModelStates, optimizer_state
from neoxargs.train.optim import build
from tests.support.deepspeed_optimizers import TORCH, TYPES
from tests.support.small_gpt import small

MOMENTUM, LARGEST = {"optimizer.params.momentum": 0.9}, {"optimizer.params.amsgrad": True}


def kept_for_each(made: torch.optim.Optimizer, weight: nn.Parameter) -> int:
    """Return the elements of optimizer state per element of the only weight, after one step."""
    weight.grad = torch.ones_like(weight)
    made.step()
    states = [part for state in made.state[weight].values() for part in (state if isinstance(state, list) else [state])]
    return sum(part.numel() for part in states if isinstance(part, torch.Tensor)) // weight.numel()


@pytest.mark.parametrize("kind", sorted(set(build._BUILDERS) - {"cpu_adam"}))
@pytest.mark.parametrize("options", [{}, MOMENTUM, LARGEST], ids=["", "momentum", "amsgrad"])
def test_state_equals_that_of_our_optimizers(kind: str, options: dict[str, Any]) -> None:
    config, weight = (
        small(**{"optimizer.type": kind, "optimizer.params.lr": 1e-3} | options),
        nn.Parameter(torch.ones(64, 32)),
    )
    made = build.build(config, [{"params": [weight], "weight_decay": 0.0}])
    assert made is not None
    assert moments(config) == kept_for_each(made, weight)


@pytest.mark.parametrize("kind", sorted(set(TORCH) - set(build._BUILDERS) - {"sparseadam"}))
def test_state_equals_that_of_torchs_optimizers(kind: str) -> None:
    """DeepSpeed builds those."""
    [made] = [getattr(torch.optim, name) for name in dir(torch.optim) if name.lower() == kind]
    weight = nn.Parameter(torch.ones(64, 32))
    options = {"momentum": 0.9} if kind == "rmsprop" else {}
    config = small(**{"optimizer.type": kind} | {f"optimizer.params.{name}": value for name, value in options.items()})
    assert moments(config) == kept_for_each(made([weight], lr=1e-3, **options), weight)


@pytest.mark.parametrize(("kind", "many"), [("sgd", 1), ("musgd", 1), ("rmsprop", 2)])
def test_the_disk_and_the_plan_count_momentum_alike(kind: str, many: int) -> None:
    config = small(**{"optimizer.type": kind, "precision": "fp32", "world_size": 1, "padded_vocab_size": 64} | MOMENTUM)
    [stage] = pipeline_stages(config, 64)
    assert optimizer_state(ModelStates(config, stage)) == 4 * many * stage.parameters
    assert checkpoint_bytes(config) == 4 * (1 + many) * stage.parameters


def test_every_name_is_an_optimizer() -> None:
    assert {*_KINDS} <= {*TYPES}
