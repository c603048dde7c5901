"""The training loop in plain torch, on one rank: what DeepSpeed's engine must agree with.

The model and the data are the run's own; gradients, clipping, weight decay and updates are torch's, written out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any

import torch
from torch import nn

from neoxargs.config.config import Config
from neoxargs.facts.lr_schedule import rates
from neoxargs.targets.wire_format import RankArguments
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.model.gpt import GPT
from neoxargs.train.process import setup
from neoxargs.train.run import model_and_data
from neoxargs.train.track.tracker import Step
from neoxargs.train.trials import properties
from neoxargs.train.trials.properties import Properties


def steps(arguments: RankArguments, process: setup.Process) -> tuple[nn.Module, list[Step], Properties]:
    """Train as the configuration says; return the model, what each step measured, and properties. Raises Problems.

    The properties are those of the untrained model, in training, where other kernels may run than in evaluation.
    """
    config = arguments.config
    model, shared, batches = model_and_data(arguments, process)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    optimizer = _optimizer(config, trained)
    rate, clip = rates(config), config.get("gradient_clipping")
    accumulated, found = config.batch.gradient_accumulation_steps, list[Step]()
    model.train()
    first = next(batches)
    tried = _properties(config, model, first)
    batches = chain([first], batches)
    for iteration in range(config.training.train_iters):
        step = list(islice(batches, accumulated))
        counts = [int((batch.labels != IGNORED).sum()) for batch in step]
        by_token = config.training.loss_average == "tokens"
        shares = [count / max(sum(counts), 1) if by_token else 1 / accumulated for count in counts]
        shared.losses.begin_step(1.0, accumulated)
        optimizer.zero_grad(set_to_none=False)
        loss = 0.0
        for batch, share in zip(step, shares, strict=True):
            part = model(**vars(batch)) * share
            part.backward()
            loss += float(part)
        gradients = {name: float(weight.grad.norm()) for name, weight in trained.items() if weight.grad is not None}
        norm = sum(value**2 for value in gradients.values()) ** 0.5
        if clip and norm > clip:
            for weight in trained.values():
                if weight.grad is not None:
                    weight.grad *= clip / norm
        for group in optimizer.param_groups:
            group["lr"] = rate(iteration)
        optimizer.step()
        reports = {f"gradient_norms/{name}": value for name, value in gradients.items()}
        found.append(Step(iteration + 1, loss, rate(iteration), norm, 0.0, 0.0, reports=reports))
    return model, found, tried


def _properties(config: Config, model: GPT, batch: MicroBatch) -> Properties:
    if config.moe.moe_num_experts > 1:  # a small step may send tokens to other experts
        return {}
    found = properties.of_gradients(model, lambda: model(**vars(batch)))
    if config.post_training.train_impl == "normal":
        with torch.no_grad():
            found |= properties.of_attention(lambda change: float(model(**vars(change(batch)))), config)
    return found


def _optimizer(config: Config, trained: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    """Return torch's optimizer of a type that it has."""
    kind, params = (config.optimizer.type or "adam").lower(), config.optimizer_params
    decay = config.regularization.weight_decay
    beta1, beta2 = params.betas or (0.9, 0.999)
    eps = 1e-8 if params.eps is None else params.eps
    adam: dict[str, Any] = {"betas": (beta1, beta2), "eps": eps, "amsgrad": params.amsgrad}
    momentum, nesterov = params.momentum or 0.0, params.nesterov
    descent: dict[str, Any] = {"momentum": momentum, "dampening": params.dampening, "nesterov": nesterov}
    adams = torch.optim.AdamW if params.adam_w_mode else torch.optim.Adam
    makers: dict[str, Callable[[Iterable[Any]], torch.optim.Optimizer]] = {
        "adam": lambda groups: adams(groups, lr=0.0, foreach=False, **adam),
        "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.0, foreach=False, **adam),
        "sgd": lambda groups: torch.optim.SGD(groups, lr=0.0, foreach=False, **descent),
    }
    is_matrix = {name: weight.dim() > 1 and not hasattr(weight, "no_weight_decay") for name, weight in trained.items()}
    groups = [
        {
            "params": [trained[name] for name in trained if is_matrix[name] is matrix],
            "weight_decay": decay if matrix else 0.0,
        }
        for matrix in (True, False)
    ]
    return makers[kind]([group for group in groups if group["params"]])
