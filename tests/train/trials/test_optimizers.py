"""The rules in plain torch agree with the optimizers of train.py; tests/commands/verify tries Muon and muP."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.optim import build
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.trials.optimizers import RULES, optimizer
from tests.support.small_gpt import VOCABULARY, small

OPTIONS: dict[str, dict[str, Any]] = {
    "adam": {"adam_w_mode": False, "amsgrad": True},
    "cpu_torch_adam": {"betas": [0.8, 0.9], "eps": 1e-3},
    "lamb": {"max_coeff": 0.3, "bias_correction": False},
    "lion": {"betas": [0.8, 0.95]},
    "madgrad_wd": {"momentum": 0.8},
    "sgd": {"momentum": 0.9, "nesterov": True},
    "sm3": {"momentum": 0.9, "beta": 0.9},
}


@pytest.mark.parametrize("is_default", [True, False])
@pytest.mark.parametrize("kind", OPTIONS)
def test_a_rule_takes_the_steps_of_the_optimizer(kind: str, is_default: bool) -> None:
    options = {} if is_default else {f"optimizer.params.{name}": value for name, value in OPTIONS[kind].items()}
    config = small(**{"optimizer.type": kind, "weight_decay": 0.1, **options})
    models = [GPT(config, VOCABULARY, Weights(), Shared()) for _ in range(2)]
    groups = build.parameter_groups(models[0], 0.1)
    updates = build.build(config, groups), optimizer(config, dict(models[1].named_parameters()))
    for number in range(4):
        for model, update in zip(models, updates, strict=True):
            generator = torch.Generator().manual_seed(number)
            for weight in model.parameters():
                weight.grad = torch.randn(weight.shape, generator=generator)
            assert update is not None
            for group in update.param_groups:
                group["lr"] = 0.01 / (number + 1)
            update.step()
    ours, plain = (dict(model.named_parameters()) for model in models)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {}),
        ({"nesterov": False, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 4},) * 2,
        ({"adjust_lr_fn": "match_rms_adamw"}, {"adjust_lr_fn": "spectral", "extra_scale_factor": 0.2}),
    ],
)
@pytest.mark.parametrize("shape", [(4, 8), (8, 4)])
def test_the_rule_of_muon_is_that_of_torch(shape: tuple[int, int], theirs: Any, ours: Any) -> None:
    config = small(**{f"optimizer.params.{key}": value for key, value in ours.items()})
    weight = torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(9)))
    found, state = weight.detach().clone(), dict[str, Any]()
    rule, update = RULES["muon"](config, "layers.0.attention.dense.weight", found), torch.optim.Muon([weight], **theirs)
    for number in range(3):
        weight.grad = torch.randn(shape, generator=torch.Generator().manual_seed(number))
        found = rule(found, weight.grad.clone(), state, 1e-3, 0.1)
        with patch.object(Tensor, "bfloat16", Tensor.clone):  # the type of torch's iteration
            update.step()
    torch.testing.assert_close(found, weight.detach(), rtol=1e-6, atol=1e-7)
