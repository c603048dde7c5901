"""Reduce bf16's fp32 sums of gradients in buckets, while the last backward pass of a step runs.

DeepSpeed's optimizer for bf16 with sums in fp32 all-reduces the gradients of the whole model after that pass, although
each rank updates one partition of the weights. Here each bucket is a parameter group, which the optimizer partitions
among the ranks: one reduce-scatter gives every rank the sums of its partition, as in Megatron-LM's distributed
optimizer. Gradients in bf16 are freed as soon as they are added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from neoxargs.train.deepspeed import interface
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.process.collectives import reduce_scatter

Groups = list[dict[str, Any]]
#: Names and gradients of some weights.
Gradients = Sequence[tuple[str, Tensor]]
#: The key of a parameter group with the number of the group that it was divided from; checkpoints store it.
DIVIDED_FROM = "divided_from"


def divide_groups(groups: Groups, elements: int, apart: Collection[nn.Parameter] = ()) -> Groups:
    """Divide parameter groups into buckets of at least so many elements, in the order of the model.

    apart: weights that get buckets of their own, because the bucket has to wait for them.
    """
    late = {id(weight) for weight in apart}
    divided: Groups = []
    for number, group in enumerate(groups):
        chosen = [weight for weight in group["params"] if id(weight) in late]
        others = [weight for weight in group["params"] if id(weight) not in late]
        for bucket in (*_buckets(others, elements), *_buckets(chosen, elements)):
            divided.append({**group, "params": bucket, DIVIDED_FROM: number})
    return divided or groups  # on a stage that trains nothing


def _buckets(weights: Sequence[nn.Parameter], elements: int) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    size = 0
    for weight in weights:
        bucket.append(weight)
        size += weight.numel()
        if size >= elements:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


@dataclass
class _Bucket:
    """The weights of a parameter group, and their gradients in one flat tensor."""

    weights: list[nn.Parameter]
    names: list[str]
    gradients: list[Tensor]
    flat: Tensor
    own: Tensor
    """The part of `flat` that this rank updates."""
    group: Any
    is_late: bool
    """Whether it must wait for the end of the backward pass."""
    passes: dict[int, int] = field(default_factory=dict)
    """Number of a weight -> micro batches whose gradient it has."""
    work: Any = None


class BucketReduction:
    """Reduces the gradients of an engine with `interface.Bf16`, whose parameter groups are buckets.

    overlaps: begin with each bucket as soon as the last backward pass has computed its gradients. late: weights whose
    gradients change after the backward pass.
    """

    def __init__(self, engine: interface.Engine, ranks: int, overlaps: bool, late: Collection[nn.Parameter]) -> None:
        optimizer: interface.Bf16 = engine.optimizer
        self.engine, self.optimizer, self.overlaps = engine, optimizer, overlaps
        self.before, self.after = _factors(engine, ranks)
        self.watchers: list[Callable[[Gradients], None]] = []
        names = {id(weight): name for name, weight in named_weights(engine.module).items()}
        places = {id(weight): place for place, weight in enumerate(engine.module.parameters())}
        late_ones = {id(weight) for weight in late}
        buckets = [
            _Bucket(
                weights,
                [names[id(weight)] for weight in weights],
                optimizer.fp32_groups_gradients[number],
                optimizer.fp32_groups_gradients_flat[number],
                optimizer.fp32_groups_gradient_flat_partition[number],
                optimizer.real_dp_process_group[number],
                any(id(weight) in late_ones for weight in weights),
            )
            for number, weights in enumerate(optimizer.bf16_groups)
        ]
        for hook in optimizer._grad_acc_hooks:  # those of `immediate_grad_update`, which do the same
            hook.remove()
        optimizer._grad_acc_hooks = [  # which its `destroy` removes
            weight.register_post_accumulate_grad_hook(self._adding(bucket, number, index))
            for number, bucket in enumerate(buckets)
            for index, weight in enumerate(bucket.weights)
        ]
        # All ranks begin with the same bucket: that which the backward pass, from the last layer to the first,
        # completes first.
        self.buckets = sorted(
            buckets, key=lambda bucket: (bucket.is_late, -min(places[id(weight)] for weight in bucket.weights))
        )
        vars(optimizer)[_ATTRIBUTE] = self
        interface.replace(engine, buffered_allreduce_fallback=self.finish)

    def _adding(self, bucket: _Bucket, number: int, index: int) -> Callable[[nn.Parameter], None]:
        def add(weight: nn.Parameter) -> None:
            assert bucket.work is None, f"{bucket.names[index]} has a gradient after its bucket was reduced"
            self.optimizer._update_hp_grad(weight, number, index, clear_lp_grads=False)
            weight.grad = None
            bucket.passes[index] = bucket.passes.get(index, 0) + 1
            if self.overlaps:
                self._begin_complete_buckets()

        return add

    def _begin_complete_buckets(self) -> None:
        passes = self.engine.gradient_accumulation_steps()
        for bucket in self.buckets:
            if bucket.work is not None:
                continue
            complete = len(bucket.passes) == len(bucket.weights) and min(bucket.passes.values()) == passes
            # In this order only, although a later one may be complete.
            if bucket.is_late or not complete:
                return
            self._begin(bucket)

    def _begin(self, bucket: _Bucket) -> None:
        present = list(zip(bucket.names, bucket.gradients, strict=True))
        for watch in self.watchers:
            watch(present)
        if self.before != 1:
            bucket.flat.mul_(self.before)
        bucket.work = reduce_scatter(bucket.own, bucket.flat, group=bucket.group, async_op=True)

    def finish(self, *_: Any, **__: Any) -> None:
        """Reduce what has not begun, and wait for all: then each rank has the means of its own partitions."""
        for bucket in self.buckets:
            if bucket.work is None:
                self._begin(bucket)
        for bucket in self.buckets:
            bucket.work.wait()
            if self.after != 1:
                bucket.own.mul_(self.after)
            bucket.work = None
            bucket.passes.clear()


_ATTRIBUTE = "_deepy_bucket_reduction"


def reduction_of(optimizer: Any) -> BucketReduction | None:
    """Return what reduces the gradients of an optimizer in buckets; None if DeepSpeed reduces them."""
    found: BucketReduction | None = vars(optimizer).get(_ATTRIBUTE)
    return found


def _factors(engine: interface.Engine, ranks: int) -> tuple[float, float]:
    """Return by what gradients are multiplied before their sum, and after it."""
    if not engine.gradient_average:
        return 1.0, 1.0
    if not engine.postscale_gradients():
        return 1 / ranks, 1.0
    return 1 / engine.gradient_predivide_factor(), engine.gradient_predivide_factor() / ranks
