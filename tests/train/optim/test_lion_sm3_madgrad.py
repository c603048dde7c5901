"""Our optimizers against the formulas of their papers, and the optimizer that a configuration selects."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from neoxargs.files.neox_checkpoint.optimizer import COUNTS_STEPS, STATES
from neoxargs.registry import REGISTRY
from neoxargs.train.optim import build as optimizer
from neoxargs.train.optim.lamb import Lamb
from neoxargs.train.optim.lion_sm3_madgrad import BUILDERS, SM3, Lion, Madgrad
from tests.support import reference
from tests.support.small_gpt import small

MAKE: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "lion": lambda weights: Lion(weights, lr=0.02, weight_decay=0.01),
    "sm3": lambda weights: SM3(weights, lr=0.5, momentum=0.9),
    "sm3 with decay": lambda weights: SM3(weights, lr=0.05, beta=0.9),
    "lamb": lambda weights: Lamb(weights, lr=0.05, weight_decay=0.001),
    "madgrad": lambda weights: Madgrad(weights, lr=0.05, weight_decay=0.01),
}


def descend(make: Callable[[Any], torch.optim.Optimizer], steps: int, pause: int | None = None) -> nn.Parameter:
    """Minimise the distance to a matrix; save and restore the optimizer after `pause` steps."""
    torch.manual_seed(0)
    goal, weight = torch.randn(4, 3), nn.Parameter(torch.zeros(4, 3))
    running = make([weight])
    for number in range(steps):
        if number == pause:
            state = running.state_dict()
            running = make([weight])
            running.load_state_dict(state)
        weight.grad = weight.detach() - goal
        running.step()
    weight.grad = weight.detach() - goal
    return weight


@pytest.mark.parametrize("name", MAKE)
def test_it_descends(name: str) -> None:
    before, after = descend(MAKE[name], 0).grad, descend(MAKE[name], 200).grad
    assert before is not None
    assert after is not None
    assert after.norm() < before.norm() / 10


@pytest.mark.parametrize("name", MAKE)
def test_saving_and_restoring_changes_nothing(name: str) -> None:
    torch.testing.assert_close(descend(MAKE[name], 20, pause=7), descend(MAKE[name], 20), rtol=0, atol=0)


def scalar(make: Callable[[Any], torch.optim.Optimizer], gradients: list[float], start: float = 2.0) -> list[float]:
    weight = nn.Parameter(torch.tensor([start], dtype=torch.float64))
    running, path = make([weight]), []
    for gradient in gradients:
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        running.step()
        path.append(weight.item())
    return path


def test_lion_by_hand() -> None:
    # m = 0: sign(0.1 x 1) = 1; then m = 0.01: sign(0.9 x 0.01 + 0.1 x -0.05) = 1 although the gradient is negative
    path = scalar(lambda weights: Lion(weights, lr=0.1, weight_decay=0.5), [1.0, -0.05])
    first = 2.0 * (1 - 0.05) - 0.1
    assert path == pytest.approx([first, first * (1 - 0.05) - 0.1])


def test_sm3_of_a_single_weight_is_adagrad() -> None:
    path = scalar(lambda weights: SM3(weights, lr=0.1), [3.0, 4.0])
    assert path == pytest.approx([2.0 - 0.1, 2.0 - 0.1 - 0.1 * 4 / 5])


def test_sm3_keeps_one_number_per_row_and_column() -> None:
    weight = nn.Parameter(torch.zeros(2, 3))
    weight.grad = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    running = SM3([weight], lr=1.0)
    running.step()
    rows, columns = running.state[weight]["slices"]
    assert rows.flatten().tolist() == [9.0, 36.0]
    assert columns.flatten().tolist() == [16.0, 25.0, 36.0]


def test_lamb_by_hand() -> None:
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))  # of length 5
    running = Lamb([weight], lr=0.1, weight_decay=0.0)
    weight.grad = torch.tensor([2.0, -7.0])  # Adam's first step is the sign, of length sqrt(2)
    running.step()
    assert weight.tolist() == pytest.approx([3 - 0.1 * 5 / math.sqrt(2), 4 + 0.1 * 5 / math.sqrt(2)])


def test_madgrad_by_hand() -> None:
    path = scalar(lambda weights: Madgrad(weights, lr=0.1, momentum=0.9, weight_decay=0.5, eps=0.0), [1.0, 2.0])
    total, squares, weight, expected = 0.0, 0.0, 2.0, []
    for step, gradient in enumerate([1.0, 2.0]):
        size = 0.1 * math.sqrt(step + 1)
        total, squares = total + size * gradient, squares + size * gradient**2
        weight = 0.9 * weight * (1 - 0.05) + 0.1 * (2.0 - total / squares ** (1 / 3))
        expected.append(weight)
    assert path == pytest.approx(expected)


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ({}, torch.optim.AdamW),
        ({"optimizer.type": "Adam"}, torch.optim.AdamW),
        ({"optimizer.type": "Adam", "optimizer.params.adam_w_mode": False}, torch.optim.Adam),
        ({"optimizer.type": "AdamW", "optimizer.params.adam_w_mode": False}, torch.optim.AdamW),
        ({"optimizer.type": "cpu_torch_adam"}, torch.optim.AdamW),
        ({"optimizer.type": "SGD", "optimizer.params.momentum": 0.9}, torch.optim.SGD),
        ({"optimizer.type": "sm3"}, SM3),
        ({"optimizer.type": "madgrad_wd"}, Madgrad),
        ({"optimizer.type": "Lion"}, Lion),
        ({"optimizer.type": "Lamb"}, Lamb),
        ({"optimizer.type": "Adagrad"}, type(None)),
    ],
)
def test_which_optimizer(written: dict[str, Any], kind: type) -> None:
    groups = optimizer.parameter_groups(nn.Linear(2, 2), 0.1)
    assert type(optimizer.build(small(**{"optimizer.params.lr": 0.1} | written), groups)) is kind


def test_biases_and_norms_do_not_decay() -> None:
    module = nn.ModuleDict({"table": nn.Embedding(3, 2), "linear": nn.Linear(2, 2), "norm": nn.LayerNorm(2)})
    module["norm"].weight.requires_grad_(False)
    decayed, exempt = optimizer.parameter_groups(module, 0.1)
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.1, 0.0)
    assert [tuple(p.shape) for p in decayed["params"]] == [(3, 2), (2, 2)]
    assert [tuple(p.shape) for p in exempt["params"]] == [(2,), (2,)]


@pytest.mark.parametrize("kind", ["lion", "madgrad_wd"])
def test_gpt_neox_s_state_continues_as_in_gpt_neox(kind: str) -> None:
    """By the names under which a GPT-NeoX checkpoint's state is restored."""
    facts = reference.read("neox_optimizers.json")[kind]
    weight = torch.nn.Parameter(torch.tensor(facts["weight"]))
    groups = [{"params": [weight], "weight_decay": 0.1}]
    params = REGISTRY.sections["optimizer.params"](lr=0.01, betas=[0.9, 0.95] if kind == "lion" else None, momentum=0.9)
    built = BUILDERS[kind](groups, params)
    state = {ours: torch.tensor(facts["state"][theirs]) for theirs, ours in STATES[kind].items()}
    built.state[weight].update(state | ({"step": facts["steps"]} if kind in COUNTS_STEPS else {}))
    for gradient in facts["gradients"]:
        weight.grad = torch.tensor(gradient)
        built.step()
    torch.testing.assert_close(weight.detach(), torch.tensor(facts["afterwards"]), rtol=0, atol=2e-6)
