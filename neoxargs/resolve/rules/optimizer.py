"""The optimizer: Megatron's and GPT-NeoX's top-level names and DeepSpeed's section `optimizer` are one setting."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from neoxargs.problems import listed
from neoxargs.registry import REGISTRY
from neoxargs.resolve.rules.rule import Contradiction, Finding, check, derives, refuse
from neoxargs.resolve.rules.synonyms import Default, agreed
from neoxargs.sizes.layout import ranks_of_replica

#: GPT-NeoX's learning rate and betas where nobody writes any.
LR = 0.001


def is_adam(kind: str) -> bool:
    """Adam in one of its forms, for which Megatron's names are meant."""
    return "adam" in kind.lower() and kind.lower() not in ("radam", "nadam", "adamax", "sparseadam")


def is_onebit(kind: str) -> bool:
    """Optimizers of DeepSpeed that compress their communication."""
    return kind.lower() in ("onebitadam", "zerooneadam", "onebitlamb")


@check
def onebit_optimizer_needs_whole_gradients(
    optimizer__type: str, zero_optimization__stage: object, data_types__grad_accum_dtype: str | None, precision: str
) -> Finding | None:
    """1-bit optimizers communicate the compressed momentum of every weight instead of gradients, so each rank must
    have all of it. ZeRO partitions it, and an fp32 gradient buffer is averaged before the optimizer sees it: ranks
    would drift apart without an error.

        optimizer: {type: OneBitAdam}
        zero_optimization: {stage: 1}
    """
    if not is_onebit(optimizer__type):
        return None
    if zero_optimization__stage != 0:
        return refuse(
            f"optimizer.type ({optimizer__type}) and zero_optimization.stage ({zero_optimization__stage})"
            " exclude each other",
            "write stage: 0; 1-bit optimizers need every gradient whole on each rank",
            about=["optimizer.type", "zero_optimization.stage"],
        )
    summed = data_types__grad_accum_dtype
    if precision != "fp32" and summed is not None and "32" in summed:
        both = f"optimizer.type ({optimizer__type}) and data_types.grad_accum_dtype ({summed})"
        about = ["optimizer.type", "data_types.grad_accum_dtype"]
        return refuse(f"{both} exclude each other in {precision}", "leave grad_accum_dtype out", about)
    return None


@check
def zero_one_adam_needs_two_replicas(
    optimizer__type: str, gpus: int, model_parallel_size: int, pipe_parallel_size: int
) -> Finding | None:
    """DeepSpeed's 0/1 Adam averages its momentum between data parallel ranks. With only one it drops the gradients of
    every step on which it does not update the variance, and the loss stops falling.

        optimizer: {type: ZeroOneAdam}
        model_parallel_size: 4
        pipe_parallel_size: 2
    """
    ranks = gpus // ranks_of_replica(model_parallel_size, pipe_parallel_size)
    if optimizer__type.lower() != "zerooneadam" or ranks > 1:
        return None
    what = f"optimizer.type ({optimizer__type}) needs at least 2 data parallel ranks"
    return refuse(what, "write type: Adam", about=["optimizer.type"])


def takes(kind: str, parameter: str) -> bool:
    """Does this type of optimizer have such a parameter?"""
    used_by_types = REGISTRY.parameters[f"optimizer.params.{parameter}"].used_by_types
    return not used_by_types or kind.lower() in used_by_types


@derives("optimizer_type", "optimizer.type")
def optimizer_type(optimizer_type: str | None, optimizer__type: str | None) -> dict[str, str]:
    """optimizer_type and optimizer.type are one setting; without either it is Adam"""

    def alike(one: str, other: str) -> bool:
        return one.lower() == other.lower()

    agreed({"optimizer_type": optimizer_type, "optimizer.type": optimizer__type}, alike)
    kind = optimizer__type or optimizer_type or "Adam"
    return {"optimizer_type": kind, "optimizer.type": kind}


@derives("lr", "optimizer.params.lr")
def lr(lr: float | None, optimizer__params__lr: float | None) -> dict[str, float]:
    """lr and optimizer.params.lr are one setting; without either it is 0.001"""
    both = {"lr": lr, "optimizer.params.lr": optimizer__params__lr}
    rate = agreed(both, advice="keep one of them; GPT-NeoX used optimizer.params.lr: leave lr out to train as it did")
    rate = LR if rate is None else rate
    return {"lr": rate, "optimizer.params.lr": rate}


@derives("adam_beta1", "adam_beta2", "optimizer.params.betas")
def betas_in_range(
    adam_beta1: float | None,
    adam_beta2: float | None,
    optimizer__params__betas: Sequence[float] | None,
    optimizer__type: str,
    default: Default,
) -> dict[str, object]:
    """adam_beta1 and adam_beta2 are the two optimizer.params.betas

    They are the decay of two running means, which Adam divides by 1 - beta to correct their bias. With a beta of 1 it
    divides by 0 and the weights are NaN after the first step; below 0 the means oscillate.

        optimizer: {params: {betas: [0.9, 1.0]}}
    """
    given = optimizer__params__betas
    if given is not None and (len(given) != 2 or not all(0 <= beta < 1 for beta in given)):
        raise Contradiction(
            f"optimizer.params.betas ({list(given)}) must be two numbers from 0 to below 1",
            "write for example betas: [0.9, 0.95]",
            about=["optimizer.params.betas"],
        )
    written = (adam_beta1, adam_beta2)
    first, second = [
        agreed({f"adam_beta{i + 1}": written[i], "optimizer.params.betas": given[i] if given else None})
        for i in range(2)
    ]
    meant = first is not None or second is not None or is_adam(optimizer__type)
    first = default("adam_beta1") if first is None else first
    second = default("adam_beta2") if second is None else second
    both = [first, second] if meant and takes(optimizer__type, "betas") else None
    return {"adam_beta1": first, "adam_beta2": second, "optimizer.params.betas": both}


@derives("adam_eps", "optimizer.params.eps")
def eps(
    adam_eps: float | None, optimizer__params__eps: float | None, optimizer__type: str, default: Default
) -> dict[str, float | None]:
    """adam_eps and optimizer.params.eps are one setting"""
    small = agreed({"adam_eps": adam_eps, "optimizer.params.eps": optimizer__params__eps})
    meant = (small is not None or is_adam(optimizer__type)) and takes(optimizer__type, "eps")
    small = default("adam_eps") if small is None else small
    return {"adam_eps": small, "optimizer.params.eps": small if meant else None}


@derives("momentum", "optimizer.params.momentum")
def momentum(
    momentum: float | None, optimizer__params__momentum: float | None, optimizer__type: str
) -> dict[str, float | None]:
    """momentum and optimizer.params.momentum are one setting"""
    nested = "optimizer.params.momentum"
    share = agreed({"momentum": momentum, nested: optimizer__params__momentum})
    return {"momentum": share, nested: share if takes(optimizer__type, "momentum") else None}


@derives("weight_decay", "optimizer.params.weight_decay")
def weight_decay(
    weight_decay: float | None, optimizer__params__weight_decay: float | None, optimizer__type: str, default: Default
) -> dict[str, float | None]:
    """weight_decay and optimizer.params.weight_decay are one setting"""
    nested = "optimizer.params.weight_decay"
    pull = agreed({"weight_decay": weight_decay, nested: optimizer__params__weight_decay})
    pull = default("weight_decay") if pull is None else pull
    return {"weight_decay": pull, nested: pull if takes(optimizer__type, "weight_decay") else None}


@derives("gradient_clipping", "clip_grad")
def clipping(
    gradient_clipping: float | None,
    clip_grad: float | None,
    optimizer__params__max_grad_norm: float | None,
    default: Default,
) -> dict[str, float]:
    """gradient_clipping, clip_grad and the retired optimizer.params.max_grad_norm are one setting"""
    norm = agreed(
        {
            "gradient_clipping": gradient_clipping,
            "clip_grad": clip_grad,
            "optimizer.params.max_grad_norm": optimizer__params__max_grad_norm,
        }
    )
    norm = default("gradient_clipping") if norm is None else norm
    return {"gradient_clipping": norm, "clip_grad": norm}


@check
def optimizer_params_belong_to_type(optimizer__type: str, written: Collection[str]) -> Finding | None:
    """optimizer.params goes to the optimizer's constructor. A key that it does not have is a TypeError on every rank,
    or, where it swallows all keys, a setting that silently does nothing.

        optimizer: {type: SGD, params: {betas: [0.9, 0.95]}}
    """
    return _param_of_another_type("optimizer", optimizer__type, written)


@check
def scheduler_params_belong_to_type(scheduler__type: str | None, written: Collection[str]) -> Finding | None:
    """scheduler.params goes to the constructor of DeepSpeed's schedule. A key that it does not have is a TypeError on
    every rank, when the engine is built.

        scheduler: {type: WarmupLR, params: {total_num_steps: 10}}
    """
    return _param_of_another_type("scheduler", scheduler__type, written)


def _param_of_another_type(section: str, kind: str | None, written: Collection[str]) -> Finding | None:
    """The first written `section.params` key that another type reads, not this one."""
    types = {
        t for p in REGISTRY.parameters.values() if p.name.startswith(f"{section}.params.") for t in p.used_by_types
    }
    if kind is None or kind.lower() not in types:
        return None
    for name in sorted(written):
        parameter = REGISTRY.parameters[name]
        if name.startswith(f"{section}.params.") and kind.lower() not in (parameter.used_by_types or types):
            own = [
                p.attribute for p in parameter.group.parameters.values() if kind.lower() in (p.used_by_types or types)
            ]
            what = f"{name} is not a setting of {section}.type {kind}"
            return refuse(what, f"{kind} has {listed(own, 'and')}", about=[f"{section}.type", name])
    return None
