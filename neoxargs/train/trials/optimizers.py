"""The update rules of optimizers in plain torch, from their papers: what the optimizers of a run must agree with.

Nothing is taken from train/optim, so that a fault there does not appear here too. A rule updates one whole weight.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.facts.lora import target
from neoxargs.facts.model import GATED
from neoxargs.files.base_shapes import read_base_shapes

State = dict[str, Any]
#: Returns the new value of a weight: weight, gradient, state, learning rate, weight decay.
Rule = Callable[[Tensor, Tensor, State, float, float], Tensor]


class Written(torch.optim.Optimizer):
    """An optimizer that updates each weight by the `rule` of its group."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    state["step"] = state.get("step", 0) + 1
                    weight.copy_(group["rule"](weight, weight.grad, state, group["lr"], group["weight_decay"]))


def optimizer(config: Config, trained: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer with a group for each weight, whose learning rate is to be divided by its `divisor`,
    and whose weight decay is to be multiplied by its `relative_decay`."""
    kind = (config.optimizer.type or "adam").lower()
    groups = []
    for name, weight in trained.items():
        decays = weight.dim() > 1 and not hasattr(weight, "no_weight_decay")
        divisor = _divisor(config, name, weight, "sgd" in kind) if config.mup.use_mup else 1.0
        relative = divisor if decays else 0.0
        decay = config.regularization.weight_decay * relative
        groups.append({"params": [weight], "weight_decay": decay, "relative_decay": relative, "divisor": divisor})
    if make := RULES.get(kind):
        rules = [make(config, name, weight) for name, weight in trained.items()]
        return Written([group | {"rule": rule} for group, rule in zip(groups, rules, strict=True)], {"lr": 0.0})
    return _of_torch(kind, config)(groups)


def _of_torch(kind: str, config: Config) -> Callable[[Any], torch.optim.Optimizer]:
    """Return torch's class of a type, with its arguments. Adam decouples the decay, unless `adam_w_mode: false`."""
    name = kind.removeprefix("cpu_").removeprefix("torch_").removeprefix("mu")
    name = "adamw" if name == "adam" and config.optimizer_params.adam_w_mode else name
    found = next(
        each for each in vars(torch.optim).values() if isinstance(each, type) and each.__name__.lower() == name
    )
    taken = inspect.signature(found).parameters.keys() - {"lr", "weight_decay", "fused", "foreach"}
    given = {
        each: value for each, value in vars(config.optimizer_params).items() if each in taken and value is not None
    }
    return partial(found, lr=0.0, **{each: tuple(v) if isinstance(v, list) else v for each, v in given.items()})


def _divisor(config: Config, name: str, weight: Tensor, is_sgd: bool) -> float:
    """Return what muP divides the learning rate of a weight by.

    Yang et al. 2022, arXiv:2203.03466, table 8: for Adam, the rate of hidden matrices falls with their inputs; for SGD,
    that of vectors and of weights from inputs of fixed size grows with their outputs.
    """
    base = read_base_shapes(str(config.mup.base_shapes_file))[name]
    growth = [size / old for size, old in zip(weight.shape, base, strict=True) if old is not None]
    if len(growth) == 2:
        return growth[1] / (growth[0] if is_sgd else 1.0)
    return 1 / growth[0] if growth and is_sgd else 1.0


def _adam(config: Config, *_: Any) -> Rule:
    params = config.optimizer_params
    (beta1, beta2), eps = params.betas or (0.9, 0.999), 1e-8 if params.eps is None else params.eps

    def rule(weight: Tensor, gradient: Tensor, state: State, lr: float, decay: float) -> Tensor:
        if not params.adam_w_mode:
            gradient = gradient + decay * weight
        update = _normalized(gradient, state, beta1, beta2, eps)
        return weight - lr * (update + (decay * weight if params.adam_w_mode else 0))

    return rule


def _normalized(
    gradient: Tensor, state: State, beta1: float, beta2: float, eps: float, corrects: bool = True
) -> Tensor:
    """Return Adam's update: Kingma and Ba 2015, arXiv:1412.6980, algorithm 1."""
    mean: Tensor = beta1 * state.get("mean", 0) + (1 - beta1) * gradient
    squares: Tensor = beta2 * state.get("squares", 0) + (1 - beta2) * gradient**2
    state |= {"mean": mean, "squares": squares}
    if corrects:
        mean, squares = mean / (1 - beta1 ** state["step"]), squares / (1 - beta2 ** state["step"])
    return mean / (squares.sqrt() + eps)


def _lion(config: Config, *_: Any) -> Rule:
    """Chen et al. 2023, arXiv:2302.06675, algorithm 2."""
    beta1, beta2 = config.optimizer_params.betas or (0.9, 0.99)

    def rule(weight: Tensor, gradient: Tensor, state: State, lr: float, decay: float) -> Tensor:
        momentum = state.get("momentum", torch.zeros_like(gradient))
        state["momentum"] = beta2 * momentum + (1 - beta2) * gradient
        return weight - lr * (torch.sign(beta1 * momentum + (1 - beta1) * gradient) + decay * weight)

    return rule


def _lamb(config: Config, *_: Any) -> Rule:
    """You et al. 2020, arXiv:1904.00962, algorithm 2; the trust ratio is bounded, and 1 where a norm is 0."""
    params = config.optimizer_params
    (beta1, beta2), eps = params.betas or (0.9, 0.999), 1e-8 if params.eps is None else params.eps

    def rule(weight: Tensor, gradient: Tensor, state: State, lr: float, decay: float) -> Tensor:
        update = _normalized(gradient, state, beta1, beta2, eps, params.bias_correction) + decay * weight
        norms = float(weight.norm()), float(update.norm())
        ratio = min(max(norms[0] / norms[1], params.min_coeff), params.max_coeff) if all(norms) else 1.0
        return weight - lr * ratio * update

    return rule


def _sm3(config: Config, *_: Any) -> Rule:
    """Anil et al. 2019, arXiv:1901.11150, algorithm SM3-II; `beta` makes a running mean of the sum of squares."""
    params = config.optimizer_params
    beta, momentum, eps = params.beta, params.momentum or 0.0, 1e-30 if params.eps is None else params.eps
    is_flat = config.zero_optimization.stage > 0  # ZeRO hands over vectors, whose rows are single elements

    def rule(weight: Tensor, gradient: Tensor, state: State, lr: float, decay: float) -> Tensor:
        shape = gradient.flatten().shape if is_flat else gradient.shape
        squares = gradient.view(shape) ** 2
        covers = state.get("covers", [torch.zeros(shape) for _ in shape])
        bound = torch.stack(covers).amin(0)
        squares = beta * bound + (1 - beta) * squares if beta else bound + squares
        state["covers"] = []
        for dimension, old in enumerate(covers):
            others = [each for each in range(len(shape)) if each != dimension]
            largest = squares.amax(others, keepdim=True).expand(shape) if others else squares
            state["covers"].append(largest if beta else torch.maximum(old, largest))
        update: Tensor = gradient / (squares.view_as(gradient) + eps).sqrt()
        if momentum:
            update = state["momentum"] = momentum * state.get("momentum", 0) + (1 - momentum) * update
        return weight - lr * update

    return rule


def _madgrad(config: Config, *_: Any) -> Rule:
    """Defazio and Jelassi 2021, arXiv:2101.11075, algorithm 1; `eps` is added to the rate as in the authors' code."""
    params = config.optimizer_params
    momentum, eps = 0.9 if params.momentum is None else params.momentum, 1e-6 if params.eps is None else params.eps

    def rule(weight: Tensor, gradient: Tensor, state: State, lr: float, decay: float) -> Tensor:
        start, size = state.setdefault("start", weight.clone()), (lr + eps) * state["step"] ** 0.5
        total = state["total"] = state.get("total", 0) + size * gradient
        squares = state["squares"] = state.get("squares", 0) + size * gradient**2
        target: Tensor = start - total / (squares ** (1 / 3) + eps)
        return momentum * (1 - lr * decay) * weight + (1 - momentum) * target

    return rule


def _muon(config: Config, name: str, weight: Tensor) -> Rule:
    """Jordan et al. 2024, kellerjordan.github.io/posts/muon, for the matrices of layers; Adam for the other weights."""
    params = config.optimizer_params
    adam, momentum = _adam(config), 0.95 if params.momentum is None else params.momentum
    is_matrix = name.startswith("layers.") and name.endswith(".weight") and weight.dim() - (".experts." in name) == 2
    own = params.muon_lr if is_matrix else params.adam_lr
    times = own / params.lr if own is not None and params.lr else 1.0
    nesterov, scale = params.nesterov is not False, partial(_scale, params.adjust_lr_fn, params.extra_scale_factor)
    part_of_row = torch.tensor(_parts_of_rows(config, name, weight.shape[-2])) if is_matrix else torch.empty(0)

    def rule(weight: Tensor, gradient: Tensor, state: State, lr: float, decay: float) -> Tensor:
        if not is_matrix:
            return adam(weight, gradient, state, lr * times, decay)
        mean = state["momentum"] = momentum * state.get("momentum", 0) + (1 - momentum) * gradient
        update: Tensor = momentum * mean + (1 - momentum) * gradient if nesterov else mean.clone()
        for part in part_of_row.unique():
            matrix = update[..., part_of_row == part, :]
            update[..., part_of_row == part, :] = _orthogonal(matrix, params.ns_steps) * scale(*matrix.shape[-2:])
        return weight - lr * times * (update + decay * weight)

    return rule


def _parts_of_rows(config: Config, name: str, rows: int) -> list[int]:
    """Return for each row of a weight which of its matrices it belongs to: queries, keys, values, halves of an MLP."""
    if name.endswith("query_key_value.weight") and config.optimizer_params.split_qkv:
        fused = target(config, "attention.query_key_value")
        return [number for number, (_, size) in enumerate(fused.parts) for _ in range(size)] * fused.groups
    if name.endswith("dense_h_to_4h.weight") and config.mlp.activation in GATED:
        return [0] * (rows // 2) + [1] * (rows // 2)
    return [0] * rows


def _scale(name: str, extra: float, rows: int, columns: int) -> float:
    """Return the factor of a matrix's update: Jordan et al.; Liu et al. 2025, arXiv:2502.16982; Megatron-LM."""
    longer = max(rows, columns)
    squares = {
        "original": max(1.0, rows / columns), "match_rms_adamw": 0.04 * longer,
        "spectral": longer, "unit_rms_norm": rows / columns,
    }  # fmt: skip
    return float(extra * squares[name] ** 0.5)


def _orthogonal(x: Tensor, steps: int) -> Tensor:
    """Return a matrix, (..., rows, columns), after so many steps of a Newton-Schulz iteration."""
    rows, columns = x.shape[-2:]
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        square = x @ x.mT if rows <= columns else x.mT @ x
        polynomial: Tensor = 3.4445 * torch.eye(min(rows, columns)) - 4.7750 * square + 2.0315 * square @ square
        x = polynomial @ x if rows <= columns else x @ polynomial
    return x


#: Types that torch does not have, or not on whole weights -> their rules.
RULES: dict[str, Callable[..., Rule]] = {
    "lamb": _lamb, "lion": _lion, "madgrad_wd": _madgrad, "muon": _muon, "sm3": _sm3,
}  # fmt: skip
