"""The optimizer: torch's fused Adam and SGD, our Lion, SM3, Madgrad, LAMB and Muon, DeepSpeed's for the rest.

`Adam` uses decoupled weight decay (AdamW), like DeepSpeed's and therefore GPT-NeoX's, unless `adam_w_mode: false`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.facts.optimizers import is_onebit
from neoxargs.train.optim import lion_sm3_madgrad
from neoxargs.train.optim.lamb import Lamb
from neoxargs.train.optim.muon import Orthogonal
from neoxargs.train.parallel.layers import is_expert, shape_of
from neoxargs.train.process.mesh import ALONE, Axis

if TYPE_CHECKING:
    from neoxargs.config.groups import OptimizerParams

ParameterGroups = list[dict[str, Any]]


def parameter_groups(module: nn.Module, weight_decay: float) -> ParameterGroups:
    """Return Megatron's two parameter groups: matrices, with weight decay; biases and norms, without."""
    groups: ParameterGroups = [{"params": [], "weight_decay": weight_decay}, {"params": [], "weight_decay": 0.0}]
    for name, weight in module.named_parameters():
        if weight.requires_grad:
            decays = len(shape_of(weight)) > 1 and not name.endswith(".bias") and not hasattr(weight, "no_weight_decay")
            groups[not decays]["params"].append(weight)
    return groups


def with_expert_groups(groups: ParameterGroups, name: str) -> ParameterGroups:
    """Move experts that data parallel ranks divide to groups of their own, which DeepSpeed reduces over other ranks.

    name: DeepSpeed's name for these ranks.
    """
    others, experts = [], []
    for group in groups:
        of_experts = [weight for weight in group["params"] if is_expert(weight)]
        rest = [weight for weight in group["params"] if not is_expert(weight)]
        others += [group | {"params": rest}] if rest or not of_experts else []
        # `moe` and `name`: the keys by which DeepSpeed knows a group of experts.
        experts += [group | {"params": of_experts, "moe": True, "name": name}] if of_experts else []
    return [*others, *experts]


def build(config: Config, groups: ParameterGroups, data: Axis = ALONE) -> torch.optim.Optimizer | None:
    """Build the optimizer for these groups; return None if DeepSpeed builds it from its `optimizer` section.

    data: the data parallel ranks, over which 1-bit optimizers average the momentum.
    Raises Problems for `cpu_adam` on a GPU without offload.
    """
    kind, params = (config.optimizer.type or "adam").lower(), config.optimizer_params
    if is_onebit(kind):
        from neoxargs.train.deepspeed import onebit

        return onebit.build(kind, groups, params, data)
    # As DeepSpeed does for an offloaded `Adam`; `torch_adam` asks for torch's.
    in_host_memory = config.offload_optimizer.device in ("cpu", "nvme") and not params.torch_adam
    if kind in ("adam", "adamw") and in_host_memory:
        kind = "cpu_adam"
    on_gpu = any(weight.is_cuda for group in groups for weight in group["params"])
    if kind == "cpu_adam" and config.offload_optimizer.device == "none" and on_gpu:
        hint = "set zero_optimization: {stage: 1, offload_optimizer: {device: cpu}}, or set optimizer.type: Adam"
        what = "optimizer.type (cpu_adam) needs the optimizer state to be offloaded to host memory"
        about = "optimizer.type", "zero_optimization.offload_optimizer.device"
        raise Problems(Problem(what, hint=hint, id="cpu-adam-needs-host-memory", about=about))
    if kind == "muon":
        return Orthogonal(groups, params, config)
    make = _BUILDERS.get(kind)
    return make(groups, params) if make else None


def _adam(groups: ParameterGroups, params: OptimizerParams, decoupled: bool = False) -> torch.optim.Optimizer:
    kind = torch.optim.AdamW if params.adam_w_mode or decoupled else torch.optim.Adam
    # fused: one kernel for all tensors, on CPUs and GPUs.
    return kind(groups, fused=True, amsgrad=params.amsgrad, **_moments(params))


_adamw = partial(_adam, decoupled=True)


def _cpu_adam(groups: ParameterGroups, params: OptimizerParams) -> torch.optim.Optimizer:
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    adam: torch.optim.Optimizer = DeepSpeedCPUAdam(
        groups,
        bias_correction=params.bias_correction,
        adamw_mode=params.adam_w_mode,
        fp32_optimizer_states=params.fp32_optimizer_states,
        **_moments(params),
    )
    return adam


def _sgd(groups: ParameterGroups, params: OptimizerParams) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        groups,
        lr=params.lr or 0.0,
        momentum=params.momentum or 0.0,
        dampening=params.dampening,
        nesterov=bool(params.nesterov),
        fused=True,
    )


def _lamb(groups: ParameterGroups, params: OptimizerParams) -> torch.optim.Optimizer:
    bounds = params.min_coeff, params.max_coeff
    return Lamb(groups, **_moments(params), bounds=bounds, bias_correction=params.bias_correction)


def _moments(params: OptimizerParams) -> dict[str, Any]:
    beta1, beta2 = params.betas or (0.9, 0.999)
    # lr None: the schedule sets the rate before the first step.
    return {"lr": params.lr or 0.0, "betas": (beta1, beta2), "eps": 1e-8 if params.eps is None else params.eps}


_BUILDERS: dict[str, Callable[[ParameterGroups, OptimizerParams], torch.optim.Optimizer]] = {
    "adam": _adam,
    "adamw": _adamw,
    "cpu_adam": _cpu_adam,
    "cpu_torch_adam": _adam,
    "lamb": _lamb,
    "muadam": _adam,
    "muadamw": _adamw,
    "musgd": _sgd,
    "sgd": _sgd,
    **lion_sm3_madgrad.BUILDERS,
}
