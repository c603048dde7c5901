"""DeepSpeed's optimizers that send one bit per number, over any back end that torch.distributed has.

DeepSpeed brings the optimizers and, to carry their messages, code for CUDA with cupy, for MPI and for compiled
operators. What carries them here is plain torch: the same on gloo and NCCL, on CPUs and GPUs.

1-bit Adam (Tang et al. 2021, https://arxiv.org/abs/2102.02888): after `freeze_step` steps of Adam the mean of squares
stays as it is, ranks keep their gradients to themselves, and the momentum is averaged by its signs and one scale per
tensor. What rounding to signs loses, each side adds to what it sends next (error feedback).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed
from deepspeed.runtime.engine import BFLOAT16, DDP_BFLOAT16
from deepspeed.runtime.fp16.onebit.adam import OnebitAdam
from deepspeed.runtime.fp16.onebit.lamb import OnebitLamb
from deepspeed.runtime.fp16.onebit.zoadam import ZeroOneAdam
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor

from neoxargs.registry.deepspeed_optimizer import OptimizerParams
from neoxargs.train.process.mesh import Axis

_KINDS: dict[str, type[torch.optim.Optimizer]] = {
    "onebitadam": OnebitAdam, "onebitlamb": OnebitLamb, "zerooneadam": ZeroOneAdam,
}  # fmt: skip
#: In learning rates; ten times as much as Adam ever moves a weight, and curves are those without any bound.
FARTHEST = 10
_BITS = (1, 2, 4, 8, 16, 32, 64, 128)


def build(kind: str, groups: list[dict[str, Any]], params: OptimizerParams, data: Axis) -> torch.optim.Optimizer:
    """The optimizer of this name (lower case), to be attached to the engine that it becomes part of."""
    base = _KINDS[kind]
    names = [name for name, p in OptimizerParams.parameters.items() if kind in p.used_by_types or name == "lr"]
    values = {name: getattr(params, name) for name in names if getattr(params, name) is not None}
    values |= {"comm_backend_name": "gloo"}  # none that DeepSpeed would load
    made: torch.optim.Optimizer = type(base.__name__, (_OneBit, base), {})(groups, Compression(data), values)
    return made


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """Within this, the pipeline engine leaves a bf16 optimizer's state whole, as the plain engine does.

    It would divide it among data parallel ranks as ZeRO-1 does, where ranks have no momentum in common to average.
    """
    choose = PipelineEngine._do_optimizer_sanity_check

    def chosen(engine: Any, basic: Any) -> Any:
        wrapper = choose(engine, basic)
        return DDP_BFLOAT16 if wrapper == BFLOAT16 else wrapper

    PipelineEngine._do_optimizer_sanity_check = chosen
    try:
        yield
    finally:
        PipelineEngine._do_optimizer_sanity_check = choose


class Compression:
    """Averages a tensor over the data parallel ranks, sending one bit per number and two scales per rank.

    Every rank is a worker, with the whole tensor, and the server of one chunk of it.
    """

    def __init__(self, axis: Axis) -> None:
        self.axis, self.size = axis, axis.size

    @torch.no_grad()
    def compressed_allreduce(
        self, buffer: Tensor, worker_error: Tensor, server_error: Tensor, local_rank: int = 0
    ) -> Tensor:
        """The average in the buffer's shape, equal on all ranks; `buffer` and the errors are updated in place.

        worker_error: (n padded to ranks x 8 bits), server_error: (its share per rank).
        """
        padded = torch.nn.functional.pad(buffer.flatten(), (0, worker_error.numel() - buffer.numel()))
        signs, scale = _compress(padded, worker_error)
        mine, scales = torch.empty_like(signs), self._everybodys(scale)
        torch.distributed.all_to_all_single(mine, signs, group=self.axis.group)
        chunk = (_unpack(mine).view(self.size, -1) * scales[:, None]).mean(0)
        signs, scale = _compress(chunk, server_error)
        average = _unpack(self._everybodys(signs)).view(self.size, -1) * self._everybodys(scale)[:, None]
        buffer.copy_(average.flatten()[: buffer.numel()].view_as(buffer))
        return buffer

    def _everybodys(self, mine: Tensor) -> Tensor:
        found = [torch.empty_like(mine) for _ in range(self.size)]
        torch.distributed.all_gather(found, mine, group=self.axis.group)
        return torch.stack(found)


class _Averaging:
    """What the optimizers take for the engine: the switch of its averaging, under the name that the engine reads."""

    local_rank, mpu = 0, None

    def __init__(self) -> None:
        self.engine: Any = None
        self.on = True

    def attach(self, engine: Any) -> None:
        self.engine, self.enable_backward_allreduce = engine, self.on

    @property
    def enable_backward_allreduce(self) -> bool:
        return self.on

    @enable_backward_allreduce.setter
    def enable_backward_allreduce(self, on: bool) -> None:
        self.on = on
        if self.engine is not None:
            pipelined = hasattr(self.engine, "pipeline_enable_backward_allreduce")
            setattr(self.engine, "pipeline_" * pipelined + "enable_backward_allreduce", on)


class _OneBit(torch.optim.Optimizer):
    """Put before one of DeepSpeed's classes, gives it a back end and what it lacks."""

    undivided = staticmethod(undivided)
    #: DeepSpeed's constructor sets its own, None for a name that it does not know.
    comm_backend_handle = property(lambda self: self.compression, lambda self, _: None)

    def __init__(self, groups: list[dict[str, Any]], compression: Compression, values: dict[str, Any]) -> None:
        self.compression = compression
        super().__init__(groups, deepspeed=_Averaging(), **values)  # type: ignore[call-arg]
        self.deepspeed: _Averaging
        self.initialize = True  # the first step is not spent on allocating buffers

    def attach(self, engine: Any) -> None:
        """From now on steps count, and turn the engine's averaging of gradients on and off."""
        self.deepspeed.attach(engine)

    def step(self, closure: Callable[[], Any] | None = None, **more: Any) -> Any:
        if self.deepspeed.engine is None:  # in half precision DeepSpeed steps on zeros to allocate the state
            return None
        averaged = self.deepspeed.on
        with contextlib.redirect_stdout(io.StringIO()):  # every rank would tell when compression begins
            super().step(closure, **more)
        if averaged and not self.deepspeed.on:
            self._bound()
        return None

    @torch.no_grad()
    def _bound(self) -> None:
        """From now on all numbers of a tensor share one scale: let none of them move by more than `FARTHEST` times lr.

        Where gradients vanish (keys' biases, words never seen), dividing that scale by the square root of a mean of
        squares near zero would throw weights far away.
        """
        for state in self.state.values():
            state["exp_avg_sq"].clamp_(min=float(state["exp_avg"].square().mean()) / FARTHEST**2)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            super().load_state_dict(state_dict)


def _compress(values: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Packed signs (n / 8) of the values with the error added, and their scale (); what is lost becomes the error."""
    values = values + error
    scale = values.norm() / values.numel() ** 0.5
    positive = values >= 0
    error.copy_(values - torch.where(positive, scale, -scale))
    return _pack(positive), scale


def _pack(bits: Tensor) -> Tensor:
    """Booleans (n) as bytes (n / 8)."""
    weights = torch.tensor(_BITS, dtype=torch.uint8, device=bits.device)
    return (bits.view(-1, 8) * weights).sum(1, dtype=torch.uint8)


def _unpack(packed: Tensor) -> Tensor:
    """Bytes (..., n / 8) as signs (..., n), 1 and -1."""
    weights = torch.tensor(_BITS, dtype=torch.uint8, device=packed.device)
    return (packed[..., None] & weights).ne(0).flatten(-2).float().mul_(2).sub_(1)
