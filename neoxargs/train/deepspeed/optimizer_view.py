"""This rank's fragments of each weight, gradient and optimizer state, for every engine and ZeRO stage of DeepSpeed.

DeepSpeed keeps gradients and states per weight, in flat buffers, or in partitions. Over all ranks together, the
fragments contain each element exactly once, so a sum over fragments is a sum over the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from neoxargs.train.deepspeed import buckets, interface
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.parallel.gradient_norm import counts_here
from neoxargs.train.parallel.layers import is_expert
from neoxargs.train.process.collectives import of_all_ranks
from neoxargs.train.process.mesh import Mesh

#: Name of a weight -> this rank's elements, flat; no entry if other ranks hold all of them.
Fragments = dict[str, Tensor]
#: Weight, or number of its parameter group -> the fp32 tensor that the optimizer updates for it.
MasterWeights = dict[Any, Tensor]


class Holdings:
    """The fragments of a DeepSpeed engine on this rank.

    If data parallel ranks hold replicas of the same tensor, the first of them has the fragment.
    """

    def __init__(self, engine: interface.Engine, mesh: Mesh) -> None:
        self.engine, self.mesh = engine, mesh
        self.weights = trained_weights(engine)

    def gradients(self) -> Fragments:
        """Return the gradients before clipping, multiplied by `loss_scale`. Call between backward pass and step."""
        return self._fragments(_gradient)

    def values(self) -> Fragments:
        """Return the weights, in fp32 if the optimizer keeps fp32 master weights."""
        return self._fragments(_value)

    def states(self) -> dict[str, Fragments]:
        """Return the optimizer states that are tensors of the weight's size, by the optimizer's names (`exp_avg`)."""
        return {key: self._fragments(of) for key, of in _states(self.engine.optimizer).items()}

    def sums(self, of: Callable[[Tensor], Tensor], fragments: Fragments) -> dict[str, float]:
        """Return the sum of `of(fragment)` over all fragments of each weight, for all pipeline stages. Collective.

        of: maps a flat fragment to a scalar tensor.
        """
        zero = torch.zeros((), device=self.engine.device)
        # Offloaded fragments are in host memory, hence `.to`.
        # A rank without a fragment adds 0: within an axis, all ranks must reduce tensors of the same length.
        local = [of(fragments[name]).to(zero) if name in fragments else zero for name in self.weights]
        total = torch.stack(local)
        for axis in (self.mesh.tensor, self.mesh.data):
            if axis.size > 1:
                dist.all_reduce(total, group=axis.group)
        by_name, pipe = dict(zip(self.weights, total.tolist(), strict=True)), self.mesh.pipe
        stages = [by_name] if pipe.size == 1 else of_all_ranks(by_name, pipe.group)
        # A weight that several stages use is counted by the first of them.
        return {name: value for stage in reversed(stages) for name, value in stage.items()}

    def _fragments(self, find: Callable[[nn.Parameter], Tensor | None]) -> Fragments:
        fragments: Fragments = {}
        for name, weight in self.weights.items():
            partitioned = isinstance(weight, interface.Partitioned | interface.Linked)
            replicas = self.mesh.expert_data if is_expert(weight) else self.mesh.data
            if counts_here(weight, self.mesh) and (partitioned or replicas.rank == 0):
                fragment = find(weight)
                if fragment is not None:
                    fragments[name] = fragment.detach().flatten()
        return fragments


def trained_weights(engine: interface.Engine) -> dict[str, nn.Parameter]:
    """Return this rank's weights that are trained, by name."""
    return {name: weight for name, weight in named_weights(engine.module).items() if weight.requires_grad}


def loss_scale(engine: interface.Engine) -> float:
    """Return the factor by which gradients are multiplied until the optimizer's step; 1 without fp16."""
    optimizer = engine.optimizer
    if isinstance(optimizer, interface.Fp16):
        state = optimizer.loss_scale_config
        # The same wrapper serves bf16, with `use_grad_scaling` False.
        return float(state.cur_scale) if state.use_grad_scaling else 1.0
    return float(optimizer.loss_scale) if isinstance(optimizer, interface.Zero12 | interface.Zero3) else 1.0


def before_step(engine: interface.Engine, hook: Callable[[], None]) -> None:
    """Call `hook` once per batch, after the gradients are averaged and before the step; on both kinds of engine."""
    # A private method, because both engines call it once per batch; `step` is called for every micro batch.
    step = engine._take_model_step

    def step_after_hook(*arguments: Any, **keywords: Any) -> Any:
        hook()
        return step(*arguments, **keywords)

    interface.replace(engine, _take_model_step=step_after_hook)


def before_reduction(engine: interface.Engine, hook: Callable[[Sequence[tuple[str, Tensor]]], None]) -> None:
    """Call `hook` with the names and gradients of weights before they are averaged over the data parallel ranks.

    Once per batch for all weights, or, as ZeRO reduces them, for some at a time; never if nothing is reduced. The
    gradients are multiplied by the loss scale.
    """
    zero, names = engine.optimizer, {id(weight): name for name, weight in named_weights(engine.module).items()}
    if isinstance(zero, interface.Zero12):
        reduce_buckets = zero.reduce_ipg_grads

        def of_buckets(*arguments: Any, **keywords: Any) -> None:
            for bucket in zero.ipg_buckets.values():
                weights = [zero.bit16_groups[group][index] for group, index, _ in bucket.params]
                hook([(names[id(weight)], x) for weight, x in zip(weights, bucket.grads, strict=True)])
            reduce_buckets(*arguments, **keywords)

        interface.replace(zero, reduce_ipg_grads=of_buckets)
    elif isinstance(zero, interface.Zero3):
        reduce_bucket = zero._DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads

        def of_bucket(dtype: torch.dtype) -> None:
            hook([(names[id(weight)], weight.grad) for weight in zero.ipg_buckets[dtype].params])
            reduce_bucket(dtype)

        interface.replace(zero, _DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads=of_bucket)
    elif ours := buckets.reduction_of(zero):
        ours.watchers.append(hook)
    else:
        reduce = engine.buffered_allreduce_fallback

        def of_all(*arguments: Any, **keywords: Any) -> None:
            hook(full_gradients(engine))
            reduce(*arguments, **keywords)

        interface.replace(engine, buffered_allreduce_fallback=of_all)


def full_gradients(engine: interface.Engine) -> list[tuple[str, Tensor]]:
    """Return this rank's gradients by the names of their weights. Not with ZeRO, which keeps only a part of them."""
    return [(name, x) for name, weight in trained_weights(engine).items() if (x := stored_gradient(weight)) is not None]


def stored_tensors(engine: interface.Engine) -> Iterator[tuple[str, Tensor]]:
    """Yield what this rank stores of each trained weight: weight, fp32 master weight, optimizer states; no padding.

    Without optimizer state that is on NVMe.
    """
    weights = trained_weights(engine)
    if not isinstance(engine.optimizer, interface.Zero3):
        yield from weights.items()
    if engine.basic_optimizer is None or engine.zero_nvme_offload_optimizer():
        return
    for of in (_value, *_states(engine.optimizer).values()):
        yield from ((name, tensor) for name, weight in weights.items() if (tensor := of(weight)) is not None)


def stored_gradient(weight: nn.Parameter) -> Tensor | None:
    """Return the gradient that the optimizer reads: in the weight's shape, or this rank's fragment, flat.

    None if this rank has none. Not for ZeRO-3.
    """
    if not isinstance(weight, interface.Linked):
        return weight.grad
    # The bf16 optimizer keeps the full gradients of all weights, although they are partitioned (those
    # outside of the partition are not valid if train.py reduces them in buckets). A weight's index counts those in the
    # partition only.
    full: Tensor | None = getattr(weight, "_hp_grad", None)
    if full is not None or weight._hp_mapping is None:
        return full
    fragment: Tensor = weight._hp_mapping.get_lp_grad_fragment(vars(weight)["_index_in_param_group"])
    return fragment


def _gradient(weight: nn.Parameter) -> Tensor | None:
    """Return this rank's fragment of the gradient."""
    if isinstance(weight, interface.Partitioned):
        # ZeRO-3 averages gradients into its own partitions and frees `weight.grad` in the backward pass.
        return _without_padding(weight, weight._z3_optimizer.get_local_fp32_grad_for_param(weight))
    gradient = stored_gradient(weight)
    if not isinstance(weight, interface.Linked):
        return gradient
    return None if gradient is None else own_elements(weight, gradient)


def own_elements(weight: interface.Linked, gradient: Tensor) -> Tensor | None:
    """Return what of a gradient, which may be only that, lies in this rank's partition, flat; None if nothing does."""
    if weight._hp_mapping is None:
        return None
    address, flat = weight._hp_mapping.lp_fragment_address, gradient.flatten()
    return flat if flat.numel() == address.numel else flat.narrow(0, address.start, address.numel)


def _value(weight: nn.Parameter) -> Tensor | None:
    if isinstance(weight, interface.Partitioned):
        return _without_padding(weight, weight._z3_optimizer.get_local_fp32_param(weight))
    if isinstance(weight, interface.Linked):
        return weight._hp_mapping.hp_fragment if weight._hp_mapping else None
    return weight


def _state(key: str, masters: MasterWeights, states: Any, weight: nn.Parameter) -> Tensor | None:
    if isinstance(weight, interface.Partitioned):
        zero = weight._z3_optimizer
        flat = zero.fp32_partitioned_groups_flat[zero.grad_position[zero.get_param_id(weight)][0]]
        return _without_padding(weight, zero.get_local_fp32_param(weight, key)) if key in states.get(flat, {}) else None
    if not isinstance(weight, interface.Linked):
        whole: Tensor | None = states.get(masters.get(weight, weight), {}).get(key)
        return whole
    if weight._hp_mapping is None:
        return None
    state: Tensor | None = states.get(masters[weight._hp_mapping.param_group_index], {}).get(key)
    # Not `optim_fragment`: DeepSpeed 0.19 fills it after the first group's first step, when other groups have no state.
    address = weight._hp_mapping.hp_fragment_address
    return None if state is None else state.narrow(0, address.start, address.numel)


def _states(optimizer: Any) -> dict[str, Callable[[nn.Parameter], Tensor | None]]:
    """Return a function from weight to fragment for each optimizer state that is a tensor of the weight's size."""
    states = optimizer.state if isinstance(optimizer, Optimizer) else optimizer.optimizer.state
    # Not scalars such as `step`. Parameter groups may have different states.
    found = {key for state in states.values() for key, value in state.items() if torch.is_tensor(value) and value.dim()}
    masters = _master_weights(optimizer)
    return {key: partial(_state, key, masters, states) for key in sorted(found)}


def _master_weights(optimizer: Any) -> MasterWeights:
    """Return the optimizer's fp32 tensors: by weight in fp16 without ZeRO, by group number under ZeRO-1 and 2."""
    if isinstance(optimizer, interface.Zero12):
        return dict(enumerate(optimizer.single_partition_of_fp32_groups))
    if isinstance(optimizer, interface.Bf16):
        return dict(enumerate(optimizer.fp32_groups_flat_partition))
    if isinstance(optimizer, interface.Fp16):
        return dict(zip(chain(*optimizer.fp16_groups), chain(*optimizer.fp32_groups), strict=True))
    return {}


def _without_padding(weight: interface.Partitioned, partition: Tensor) -> Tensor:
    """Return a ZeRO-3 partition without padding, which the last partition of a weight has."""
    rank = weight._z3_optimizer._get_param_partition_rank(weight)
    return partition[: max(0, weight.ds_numel - rank * partition.numel())]
