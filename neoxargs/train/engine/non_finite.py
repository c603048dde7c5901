"""Which rank, pipeline stage and weight had the first gradient that is infinite or NaN.

Gradients are examined before they are averaged over the data parallel ranks, which makes them NaN on all of them. The
cost is one pass over the gradients per reduction; the host reads the result together with the loss of the step, and
with what the ranks tell each other in the same all-reduce.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.base.problems import Problem, Problems
from neoxargs.train.deepspeed import interface
from neoxargs.train.deepspeed.optimizer_view import before_reduction, before_step, full_gradients
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.process.collectives import of_all_ranks
from neoxargs.train.process.mesh import Mesh

#: Names of weights, and the largest absolute value of the gradient of each: infinite or NaN if an element is.
Gradients = list[tuple[list[str], Tensor]]


class NonFinite:
    """Watches the gradients of an engine, one step at a time."""

    def __init__(self, engine: interface.Engine, mesh: Mesh) -> None:
        self.engine, self.mesh = engine, mesh
        self.order = {name: number for number, name in enumerate(named_weights(engine.module))}
        self.largest: Gradients = []
        #: 1 if a gradient of any rank is not finite; then the largest on any rank of each number that was told.
        self.flags = torch.zeros(1, device=engine.device)
        before_reduction(engine, self._add)
        before_step(engine, self._share)

    def begin_step(self, told: Sequence[int] = ()) -> None:
        """Forget the gradients of the step before. told: numbers of this rank, as many on every rank."""
        self.largest = []
        # Filled, not copied from the host, which would wait for the device.
        zero = torch.zeros((), device=self.engine.device)
        self.flags = torch.stack([zero, *(torch.full_like(zero, number) for number in told)])

    def describe(self, losses: Sequence[Tensor], gradients: Gradients) -> str:
        """Return where the first such number of a step was, "" if it is not known. Collective.

        losses: those of this rank's micro batches. gradients: `largest` at the end of the step.
        """
        loss = next((word for value in losses if (word := _word(float(value)))), "")
        values = [(name, word) for name, value in _each(gradients) if (word := _word(value))]
        # The backward pass computes the gradients of the last layers first.
        name, word = max(values, key=lambda value: self.order[value[0]], default=("", ""))
        of_ranks = of_all_ranks((self.mesh.pipe.rank, loss, name, word, socket.gethostname()))
        affected = [(rank, *found) for rank, found in enumerate(of_ranks) if found[1] or found[2]]
        if not affected:
            return ""
        rank, stage, loss, name, word, host = max(affected, key=lambda found: (bool(found[3]), found[1], -found[0]))
        what = [f"the loss is {loss}"] * bool(loss) + [f"the gradient of {name} is {word}"] * bool(name)
        place = f"rank {rank} on {host}" + f" (pipeline stage {stage})" * (self.mesh.pipe.size > 1)
        return f"first found on {place}, where {' and '.join(what)}"

    def describe_largest(self, gradients: Gradients, belongs: Callable[[str], bool]) -> str:
        """Return which of the weights that belong had the largest gradient, and on which rank. Collective."""
        own = [(value, name) for name, value in _each(gradients) if belongs(name)]
        of_ranks = of_all_ranks((*max(own, default=(-1.0, "")), self.mesh.pipe.rank))
        rank, (_, name, stage) = max(enumerate(of_ranks), key=lambda found: found[1][0])
        return name and f"{name} on rank {rank}" + f" (pipeline stage {stage})" * (self.mesh.pipe.size > 1)

    def _add(self, gradients: Sequence[tuple[str, Tensor]]) -> None:
        present = [(name, gradient) for name, gradient in gradients if gradient.numel()]
        if present:
            norms = torch._foreach_norm([gradient for _, gradient in present], float("inf"))
            largest = torch.stack([norm.float() for norm in norms]).to(self.engine.device)
            self.largest.append(([name for name, _ in present], largest))

    def _share(self) -> None:
        # Without ZeRO, nothing is reduced if there is one replica, or if a 1-bit optimizer does that.
        if not self.largest and not self.engine.zero_optimization():
            self._add(full_gradients(self.engine))
        if self.largest:
            # 1 where something is not finite, so that MAX means "on any rank".
            self.flags[:1] = 1.0 - torch.cat([largest for _, largest in self.largest]).isfinite().all().float()
        if dist.get_world_size() > 1:
            dist.all_reduce(self.flags, dist.ReduceOp.MAX)


def is_lowest_scale(error: Exception) -> bool:
    """Whether an error says that fp16 gradients overflow even at the lowest loss scale."""
    # DeepSpeed raises a bare Exception, half_precision.py an OverflowError.
    return isinstance(error, OverflowError) or "loss scale already at minimum" in str(error)


def keeps_overflowing(lowest: float, where: str) -> Problems:
    what = f"fp16 gradients overflow even with the minimum loss scale, min_scale ({lowest:g})"
    what += f"; {where}" * bool(where) + "; training stopped without saving"
    hint = "set precision: bf16, or continue from an earlier checkpoint with a lower lr"
    return Problems(Problem(what, hint=hint, id="fp16-keeps-overflowing", about=("min_scale", "precision", "lr")))


def _each(gradients: Gradients) -> Iterator[tuple[str, float]]:
    for names, largest in gradients:
        yield from zip(names, largest.tolist(), strict=True)


def _word(value: float) -> str:
    """Return NaN or infinite, or "" for any other number."""
    return "NaN" if math.isnan(value) else "infinite" if math.isinf(value) else ""
