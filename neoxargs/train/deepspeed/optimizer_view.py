"""What this rank holds of each weight, its gradient and its optimizer state, whatever engine holds it.

DeepSpeed's optimizers keep gradients and states whole, in flat buffers or in partitions. Here each is a list of shards:
over all ranks together every element is in one of them, so a sum over shards is a sum over the weight.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from neoxargs.train.deepspeed.gradient_norm import counts_here
from neoxargs.train.parallel.pipeline import named_weights
from neoxargs.train.process.mesh import Mesh

#: Weight's name -> this rank's elements of it, flat; no entry where other ranks hold them all.
Shards = dict[str, Tensor]
#: Weight, or the number of its group -> what stands for it in the optimizer.
Copies = dict[Any, Tensor]


class _Weight(NamedTuple):
    name: str
    parameter: nn.Parameter


class Holdings:
    """The weights of a DeepSpeed engine on this rank.

    Where data parallel ranks repeat each other, the first of them has the shards.
    """

    def __init__(self, engine: Any, mesh: Mesh) -> None:
        self.engine, self.mesh = engine, mesh
        self.weights = [_Weight(*item) for item in named_weights(engine.module).items() if item[1].requires_grad]

    @property
    def loss_scale(self) -> float:
        """What fp16 gradients are multiplied by before the step that undoes it."""
        state = getattr(self.engine.optimizer, "loss_scale_config", None)
        if state is not None:
            return float(state.cur_scale) if state.use_grad_scaling else 1.0
        return float(getattr(self.engine.optimizer, "loss_scale", 1.0))

    def gradients(self) -> Shards:
        """Before clipping, not yet divided by `loss_scale`; to be asked between the backward pass and the step."""
        return self._shards(_gradient)

    def values(self) -> Shards:
        """The weights themselves, in fp32 where the optimizer keeps them so."""
        return self._shards(_value)

    def states(self) -> dict[str, Shards]:
        """By the optimizer's own name for a state, such as `exp_avg`; what is as large as its weight."""
        inner = getattr(self.engine.optimizer, "optimizer", self.engine.optimizer)
        state: dict[str, Any] = next(iter(inner.state.values()), {})
        keys = sorted(key for key, value in state.items() if torch.is_tensor(value) and value.dim())
        copies = _full_precision(self.engine.optimizer)
        return {key: self._shards(partial(_state, key, copies, inner.state)) for key in keys}

    def sums(self, of: Callable[[Tensor], Tensor], shards: Shards) -> dict[str, float]:
        """`of` of all shards of a weight added up, for the weights of all pipeline stages."""
        zero = torch.zeros((), device=self.engine.device)
        # Shards of what is offloaded lie in main memory.
        mine = [of(shards[weight.name]).to(zero) if weight.name in shards else zero for weight in self.weights]
        total = torch.stack(mine)
        for axis in (self.mesh.tensor, self.mesh.data):
            if axis.size > 1:
                dist.all_reduce(total, group=axis.group)
        found = {weight.name: value for weight, value in zip(self.weights, total.tolist(), strict=True)}
        return self._over_stages(found)

    def _over_stages(self, found: dict[str, float]) -> dict[str, float]:
        pipe = self.mesh.pipe
        if pipe.size == 1:
            return found
        stages: list[Any] = [None] * pipe.size
        dist.all_gather_object(stages, found, group=pipe.group)
        # A weight that several stages use is counted by the first of them.
        return {name: value for stage in reversed(stages) for name, value in stage.items()}

    def _shards(self, find: Callable[[nn.Parameter], Tensor | None]) -> Shards:
        found: Shards = {}
        for name, weight in self.weights:
            shared_out = hasattr(weight, "ds_id") or hasattr(weight, "_hp_mapping")
            if counts_here(weight, self.mesh) and (shared_out or self.mesh.data.rank == 0):
                shard = find(weight)
                if shard is not None:
                    found[name] = shard.detach().flatten()
        return found


def before_step(engine: Any, look: Callable[[], None]) -> None:
    """Call `look` once per batch, with all gradients averaged; on engines with a pipeline and without."""
    step = engine._take_model_step

    def looked_at(*arguments: Any, **keywords: Any) -> Any:
        look()
        return step(*arguments, **keywords)

    engine._take_model_step = looked_at


def _gradient(weight: Any) -> Tensor | None:
    if hasattr(weight, "ds_id"):
        return _own(weight, weight._z3_optimizer.get_local_fp32_grad_for_param(weight))
    if not hasattr(weight, "_hp_mapping"):
        return weight.grad  # type: ignore[no-any-return]
    share = weight._hp_mapping
    if share is None:
        return None
    gradient: Tensor = share.get_lp_grad_fragment(weight._index_in_param_group).flatten()
    place = share.lp_fragment_address
    # The bf16 optimizer keeps whole gradients beside shares of the weights.
    return gradient if gradient.numel() == place.numel else gradient.narrow(0, place.start, place.numel)


def _value(weight: Any) -> Tensor | None:
    if hasattr(weight, "ds_id"):
        return _own(weight, weight._z3_optimizer.get_local_fp32_param(weight))
    if not hasattr(weight, "_hp_mapping"):
        return weight  # type: ignore[no-any-return]
    return weight._hp_mapping.hp_fragment if weight._hp_mapping else None


def _state(key: str, copies: Copies, states: Any, weight: Any) -> Tensor | None:
    if hasattr(weight, "ds_id"):
        return _own(weight, weight._z3_optimizer.get_local_fp32_param(weight, key))
    share = getattr(weight, "_hp_mapping", None)
    if hasattr(weight, "_hp_mapping") and share is None:
        return None
    stepped_on = copies.get(weight, weight) if share is None else copies[share.param_group_index]
    state: Tensor | None = states.get(stepped_on, {}).get(key)
    if share is None or state is None:
        return state
    # Not `optim_fragment`: DeepSpeed looks it up after the first group's first step, when other groups have no state.
    return state.narrow(0, share.hp_fragment_address.start, share.hp_fragment_address.numel)


def _full_precision(optimizer: Any) -> Copies:
    """What the optimizer steps on: by weight in fp16 without ZeRO, by group where ZeRO has made them flat."""
    for flat in ("single_partition_of_fp32_groups", "fp32_groups_flat_partition"):
        if hasattr(optimizer, flat):
            return dict(enumerate(getattr(optimizer, flat)))
    pairs = zip(getattr(optimizer, "fp16_groups", ()), getattr(optimizer, "fp32_groups", ()), strict=False)
    return {weight: copy for group in pairs for weight, copy in zip(*group, strict=True)}


def _own(weight: Any, share: Tensor) -> Tensor:
    """ZeRO-3's last share of a weight is padded."""
    rank = weight._z3_optimizer._get_param_partition_rank(weight)
    return share[: max(0, weight.ds_numel - rank * share.numel())]
