"""The optimizer: top-level names of Megatron and GPT-NeoX are synonyms of keys in DeepSpeed's section `optimizer`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from neoxargs.base.problems import listed
from neoxargs.facts.layout import ranks_of_replica
from neoxargs.facts.optimizers import is_onebit
from neoxargs.registry import REGISTRY
from neoxargs.resolve.rules.rule import Contradiction, Findings, check, derives, refuse
from neoxargs.resolve.rules.synonyms import Default, agreed_value, ignored

#: The learning rate that GPT-NeoX uses if none is set.
DEFAULT_LR = 0.001


def is_adam(kind: str) -> bool:
    """Whether the type is a variant of Adam that Megatron's `adam_*` names apply to."""
    return "adam" in kind.lower() and kind.lower() not in ("radam", "nadam", "adamax", "sparseadam")


@check
def onebit_optimizer_needs_full_gradients(
    optimizer__type: str, zero_optimization__stage: object, data_types__grad_accum_dtype: str | None, precision: str
) -> Findings:
    """1-bit optimizers communicate the compressed momentum of every weight instead of gradients, so each rank must hold
    the whole momentum. ZeRO partitions the momentum, and an fp32 gradient buffer is averaged before the optimizer
    receives the gradients: the ranks would diverge without an error.

        optimizer: {type: OneBitAdam}
        zero_optimization: {stage: 1}
    """
    if not is_onebit(optimizer__type):
        return
    summed = data_types__grad_accum_dtype
    if zero_optimization__stage != 0:
        yield refuse(
            f"optimizer.type ({optimizer__type}) and zero_optimization.stage ({zero_optimization__stage})"
            " cannot be combined",
            "set zero_optimization.stage to 0; 1-bit optimizers do their own communication and do not work with ZeRO",
            about=["optimizer.type", "zero_optimization.stage"],
        )
    elif precision != "fp32" and summed is not None and "32" in summed:
        both = f"optimizer.type ({optimizer__type}) and data_types.grad_accum_dtype ({summed})"
        yield refuse(
            f"{both} cannot be combined with precision ({precision})",
            "remove data_types.grad_accum_dtype",
            about=["optimizer.type", "data_types.grad_accum_dtype"],
        )


@check
def spikes_need_averaged_gradients(on_spike: str, optimizer__type: str) -> Findings:
    """on_spike judges the norms of the gradients that the optimizer receives. 1-bit optimizers average momentum instead
    of gradients, so that a spike on another rank than the first would not be seen.

        on_spike: warn
        optimizer: {type: OneBitAdam}
    """
    if on_spike != "ignore" and is_onebit(optimizer__type):
        what = f"on_spike ({on_spike}) cannot be combined with optimizer.type ({optimizer__type}), which averages no "
        yield refuse(f"{what}gradients", "remove on_spike, or set optimizer.type: Adam")


@check
def zero_one_adam_needs_two_replicas(
    optimizer__type: str, gpus: int, model_parallel_size: int, pipe_parallel_size: int, context_parallel_size: int
) -> Findings:
    """DeepSpeed's 0/1 Adam averages its momentum over the data parallel ranks. With only one rank, 0/1 Adam drops the
    gradients of every step that does not update the variance, and the loss stops falling.

        optimizer: {type: ZeroOneAdam}
        model_parallel_size: 4
        pipe_parallel_size: 2
    """
    ranks = gpus // ranks_of_replica(model_parallel_size, pipe_parallel_size, context_parallel_size)
    if optimizer__type.lower() == "zerooneadam" and ranks <= 1:
        what = f"optimizer.type ({optimizer__type}) needs at least 2 data parallel ranks, not {ranks}"
        yield refuse(what, "set optimizer.type to Adam", about=["optimizer.type"])


def accepts_param(kind: str, parameter: str) -> bool:
    """Whether this type of optimizer reads a key of `optimizer.params`."""
    used_by_types = REGISTRY.parameters[f"optimizer.params.{parameter}"].used_by_types
    return not used_by_types or kind.lower() in used_by_types


@derives("optimizer_type", "optimizer.type")
def optimizer_type(optimizer_type: str | None, optimizer__type: str | None) -> dict[str, str]:
    """optimizer_type and optimizer.type are the same setting; without either, it is Adam"""

    def equal(one: str, other: str) -> bool:
        return one.lower() == other.lower()

    agreed_value({"optimizer_type": optimizer_type, "optimizer.type": optimizer__type}, equal)
    kind = optimizer__type or optimizer_type or "Adam"
    return {"optimizer_type": kind, "optimizer.type": kind}


@derives("lr", "optimizer.params.lr")
def lr(lr: float | None, optimizer__params__lr: float | None) -> dict[str, float]:
    """lr and optimizer.params.lr are the same setting; without either, it is 0.001"""
    both = {"lr": lr, "optimizer.params.lr": optimizer__params__lr}
    rate = agreed_value(both, advice=ignored("lr", "optimizer.params.lr"))
    rate = DEFAULT_LR if rate is None else rate
    return {"lr": rate, "optimizer.params.lr": rate}


@derives("adam_beta1", "adam_beta2", "optimizer.params.betas")
def betas_in_range(
    adam_beta1: float | None,
    adam_beta2: float | None,
    optimizer__params__betas: Sequence[float] | None,
    optimizer__type: str,
    default: Default,
) -> dict[str, object]:
    """adam_beta1 and adam_beta2 are the two values of optimizer.params.betas

    The betas are the decay rates of two running means, which Adam divides by 1 - beta^step to correct their bias. With
    a beta of 1, Adam divides by 0, and the weights are NaN after the first step; with a beta below 0, the means
    oscillate.

        optimizer: {params: {betas: [0.9, 1.0]}}
    """
    given = optimizer__params__betas
    if given is not None and (len(given) != 2 or not all(0 <= beta < 1 for beta in given)):
        raise Contradiction(
            f"optimizer.params.betas ({list(given)}) must be two numbers that are at least 0 and below 1",
            "for example, set optimizer.params.betas to [0.9, 0.95]",
            about=["optimizer.params.betas"],
        )
    written = (adam_beta1, adam_beta2)
    first, second = [
        agreed_value({f"adam_beta{i + 1}": written[i], "optimizer.params.betas": given[i] if given else None})
        for i in range(2)
    ]
    # Adam gets GPT-NeoX's default betas; other optimizers keep their own unless betas are set.
    is_sent = first is not None or second is not None or is_adam(optimizer__type)
    first = default("adam_beta1") if first is None else first
    second = default("adam_beta2") if second is None else second
    both = [first, second] if is_sent and accepts_param(optimizer__type, "betas") else None
    return {"adam_beta1": first, "adam_beta2": second, "optimizer.params.betas": both}


@derives("adam_eps", "optimizer.params.eps")
def eps(
    adam_eps: float | None, optimizer__params__eps: float | None, optimizer__type: str, default: Default
) -> dict[str, float | None]:
    """adam_eps and optimizer.params.eps are the same setting"""
    value = agreed_value({"adam_eps": adam_eps, "optimizer.params.eps": optimizer__params__eps})
    is_sent = (value is not None or is_adam(optimizer__type)) and accepts_param(optimizer__type, "eps")
    value = default("adam_eps") if value is None else value
    return {"adam_eps": value, "optimizer.params.eps": value if is_sent else None}


@derives("momentum", "optimizer.params.momentum")
def momentum(
    momentum: float | None, optimizer__params__momentum: float | None, optimizer__type: str
) -> dict[str, float | None]:
    """momentum and optimizer.params.momentum are the same setting"""
    nested = "optimizer.params.momentum"
    value = agreed_value({"momentum": momentum, nested: optimizer__params__momentum})
    return {"momentum": value, nested: value if accepts_param(optimizer__type, "momentum") else None}


@derives("weight_decay", "optimizer.params.weight_decay")
def weight_decay(
    weight_decay: float | None, optimizer__params__weight_decay: float | None, optimizer__type: str, default: Default
) -> dict[str, float | None]:
    """weight_decay and optimizer.params.weight_decay are the same setting"""
    nested = "optimizer.params.weight_decay"
    value = agreed_value({"weight_decay": weight_decay, nested: optimizer__params__weight_decay})
    value = default("weight_decay") if value is None else value
    return {"weight_decay": value, nested: value if accepts_param(optimizer__type, "weight_decay") else None}


@check
def weight_decay_that_changes_has_two_ends(
    weight_decay_incr_style: str,
    start_weight_decay: float | None,
    end_weight_decay: float | None,
    weight_decay: float,
    scheduler__type: str | None,
) -> Findings:
    """With weight_decay_incr_style linear or cosine, the weight decay goes from start_weight_decay to end_weight_decay.
    train.py changes it together with its own learning rate, for the weights to which weight_decay applies.

        weight_decay_incr_style: cosine
        start_weight_decay: 0.01
    """
    style = "weight_decay_incr_style"
    if weight_decay_incr_style == "constant":
        return
    ends = {"start_weight_decay": start_weight_decay, "end_weight_decay": end_weight_decay}
    if missing := [name for name, value in ends.items() if value is None]:
        what = f"with {style} {weight_decay_incr_style}, {listed(missing, 'and')} must be set"
        yield refuse(what, f"set {listed(missing, 'and')}, or {style} to constant", about=[style])
    elif scheduler__type is not None:
        what = f"{style} {weight_decay_incr_style} cannot be combined with scheduler.type ({scheduler__type})"
        yield refuse(what, "remove scheduler.type, and set lr_decay_style", about=[style, "scheduler.type"])
    elif not weight_decay and any(ends.values()):
        what = f"{style} {weight_decay_incr_style} needs a weight_decay above 0: with 0, no weight has any decay"
        advice = f"set weight_decay to {end_weight_decay or start_weight_decay:g}"
        yield refuse(what, advice, about=[style, "weight_decay"])


@derives("gradient_clipping", "clip_grad")
def clipping(
    gradient_clipping: float | None,
    clip_grad: float | None,
    optimizer__params__max_grad_norm: float | None,
    default: Default,
) -> dict[str, float]:
    """gradient_clipping, clip_grad and the retired optimizer.params.max_grad_norm are the same setting"""
    names = ("gradient_clipping", "clip_grad", "optimizer.params.max_grad_norm")
    values = (gradient_clipping, clip_grad, optimizer__params__max_grad_norm)
    norm = agreed_value(dict(zip(names, values, strict=True)))
    norm = default("gradient_clipping") if norm is None else norm
    return {"gradient_clipping": norm, "clip_grad": norm}


@check
def optimizer_params_belong_to_type(optimizer__type: str, written: Collection[str]) -> Findings:
    """optimizer.params is passed to the constructor of the optimizer. A key that the constructor does not accept raises
    TypeError on every rank. If the constructor accepts any key, the key has no effect.

        optimizer: {type: SGD, params: {betas: [0.9, 0.95]}}
    """
    return _param_of_another_type("optimizer", optimizer__type, written)


@check
def scheduler_params_belong_to_type(scheduler__type: str | None, written: Collection[str]) -> Findings:
    """scheduler.params is passed to the constructor of DeepSpeed's schedule. A key that the constructor does not accept
    raises TypeError on every rank when the engine is built.

        scheduler: {type: WarmupLR, params: {total_num_steps: 10}}
    """
    return _param_of_another_type("scheduler", scheduler__type, written)


def _param_of_another_type(section: str, kind: str | None, written: Collection[str]) -> Findings:
    """Refuse the first `section.params` key that is set and that other types read, but not this one."""
    prefix = f"{section}.params."
    params = sorted(name for name in written if name.startswith(prefix))
    if kind is None or not params:
        return
    groups = [group for group in REGISTRY.groups if group.section == f"{section}.params"]
    known = [parameter for group in groups for parameter in group.parameters.values()]
    types = {each for parameter in known for each in parameter.used_by_types}
    # A plugin's optimizer, or one of torch's without a list of settings: nothing is known about its keys.
    if kind.lower() not in types:
        return
    own = [parameter for parameter in known if kind.lower() in (parameter.used_by_types or types)]
    if name := next((name for name in params if REGISTRY.parameters[name] not in own), None):
        advice = f"remove {name.rpartition('.')[2]}, or unset it with --set {name}=auto; "
        advice += f"{kind} accepts {listed([parameter.attribute for parameter in own], 'and')}"
        yield refuse(f"{section}.type ({kind}) does not accept {name}", advice, about=[f"{section}.type", name])
