"""DeepSpeed's 1-bit optimizers with a compressed all-reduce that works on every backend of torch.distributed.

DeepSpeed's own compression backends need cupy with NCCL, MPI, or compiled operators. The one in this module uses plain
torch collectives, on CPUs and GPUs.

1-bit Adam (Tang et al. 2021, https://arxiv.org/abs/2102.02888): after `freeze_step` steps of Adam the second moment
stays constant, gradients are no longer averaged, and the momentum is averaged in compressed form: one sign per element
and one scale per tensor. Each sender adds its rounding error to what it sends next (error feedback).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.runtime.engine import BFLOAT16, DDP_BFLOAT16
from deepspeed.runtime.fp16.onebit.adam import OnebitAdam
from deepspeed.runtime.fp16.onebit.lamb import OnebitLamb
from deepspeed.runtime.fp16.onebit.zoadam import ZeroOneAdam
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor

from neoxargs.registry import REGISTRY
from neoxargs.train.deepspeed import interface
from neoxargs.train.process.collectives import all_to_all, gather
from neoxargs.train.process.mesh import Axis

if TYPE_CHECKING:
    from neoxargs.config.groups import OptimizerParams

_KINDS: dict[str, type[torch.optim.Optimizer]] = {
    "onebitadam": OnebitAdam, "onebitlamb": OnebitLamb, "zerooneadam": ZeroOneAdam,
}  # fmt: skip
#: Largest update of an element after compression starts, in learning rates. It is ten times Adam's largest update, and
#: loss curves do not differ from those without a bound.
MAX_UPDATE = 10


def build(kind: str, groups: list[dict[str, Any]], params: OptimizerParams, data: Axis) -> torch.optim.Optimizer:
    """Build the optimizer of this type (lower case). Call its `attach` with the engine that will step it.

    data: the data parallel ranks over which it averages.
    """
    base = _KINDS[kind]
    group = REGISTRY.sections["optimizer.params"]
    assert group is not None
    names = [name for name, p in group.parameters.items() if kind in p.used_by_types or name == "lr"]
    values = {name: getattr(params, name) for name in names if getattr(params, name) is not None}
    values |= {"comm_backend_name": "gloo"}  # a name for which DeepSpeed 0.19 loads no backend of its own
    # A class with the base's name: DeepSpeed names an optimizer that it is given by its class.
    optimizer: torch.optim.Optimizer = type(base.__name__, (_OneBit, base), {})(groups, Compression(data), values)
    return optimizer


@contextlib.contextmanager
def unpartitioned() -> Iterator[None]:
    """Within this, the pipeline engine does not partition the state of a bf16 optimizer, like the plain engine.

    By default it partitions it over the data parallel ranks, as ZeRO-1 does. 1-bit optimizers average the momentum of
    all ranks, so every rank needs all of it.
    """
    choose = PipelineEngine._do_optimizer_sanity_check

    def choose_unpartitioned(engine: interface.Engine, basic: Any) -> Any:
        wrapper = choose(engine, basic)
        return DDP_BFLOAT16 if wrapper == BFLOAT16 else wrapper

    with interface.replaced(PipelineEngine, _do_optimizer_sanity_check=choose_unpartitioned):
        yield


class Compression:
    """Averages a tensor over the data parallel ranks; sends one bit per element and two scales per rank.

    Every rank is a worker, which has the full tensor, and the server of one chunk of it.
    """

    def __init__(self, axis: Axis) -> None:
        self.axis, self.size = axis, axis.size

    @torch.no_grad()
    def compressed_allreduce(
        self, buffer: Tensor, worker_error: Tensor, server_error: Tensor, local_rank: int = 0
    ) -> Tensor:
        """Return the average in the buffer's shape, equal on all ranks; update `buffer` and the errors in place.

        worker_error: (elements of the buffer, padded to a multiple of ranks x 8). server_error: (that / ranks).
        """
        # DeepSpeed's optimizers allocate `worker_error` with that length, so that each rank's chunk fills whole bytes.
        padded = torch.nn.functional.pad(buffer.flatten(), (0, worker_error.numel() - buffer.numel()))
        signs, scale = _compress(padded, worker_error)
        scales = gather(scale, self.axis.group)
        # Rank r receives chunk r of every rank's signs, (ranks, chunk / 8) bytes, and averages it as its server.
        received = all_to_all(signs, self.axis.group)
        chunk = (_unpack(received).view(self.size, -1) * scales[:, None]).mean(0)
        signs, scale = _compress(chunk, server_error)
        # The server sends its average compressed as well, and keeps the rounding error of that.
        average = _unpack(gather(signs, self.axis.group)) * gather(scale, self.axis.group)[:, None]
        buffer.copy_(average.flatten()[: buffer.numel()].view_as(buffer))
        return buffer


class _EngineProxy:
    """Passed to DeepSpeed's optimizers as the engine: forwards the switch that turns gradient averaging on and off.

    They set `enable_backward_allreduce`, but the pipeline engine reads `pipeline_enable_backward_allreduce`.
    """

    # What the base classes read of an engine; `Compression` has its own ranks and needs neither.
    local_rank, mpu = 0, None

    def __init__(self) -> None:
        self.engine: interface.Engine | None = None
        self.on = True

    def attach(self, engine: interface.Engine) -> None:
        self.engine, self.enable_backward_allreduce = engine, self.on

    @property
    def enable_backward_allreduce(self) -> bool:
        return self.on

    @enable_backward_allreduce.setter
    def enable_backward_allreduce(self, on: bool) -> None:
        self.on = on
        if self.engine is not None:
            interface.set_gradient_averaging(self.engine, on)


class _OneBit(torch.optim.Optimizer):
    """Mixin before one of DeepSpeed's 1-bit optimizers: our compression, and corrections of its step."""

    unpartitioned = staticmethod(unpartitioned)
    #: DeepSpeed's constructor assigns its own backend (None for the name above); the assignment is ignored.
    comm_backend_handle = property(lambda self: self.compression, lambda self, _: None)

    def __init__(self, groups: list[dict[str, Any]], compression: Compression, values: dict[str, Any]) -> None:
        self.compression = compression
        # The base classes want the engine, which does not exist before its optimizer.
        super().__init__(groups, **{"deepspeed": _EngineProxy(), **values})
        self.deepspeed: _EngineProxy
        self.initialize = True  # otherwise DeepSpeed's first step only allocates buffers and updates no weight

    def attach(self, engine: interface.Engine) -> None:
        """Connect the optimizer to its engine, whose gradient averaging it switches. Earlier steps are ignored."""
        self.deepspeed.attach(engine)

    def step(self, closure: Callable[[], Any] | None = None, **keywords: Any) -> Any:
        if self.deepspeed.engine is None:  # in half precision, DeepSpeed steps on zero gradients to allocate the state
            return None
        averaged = self.deepspeed.on
        with contextlib.redirect_stdout(io.StringIO()):  # every rank prints a line when compression starts
            super().step(closure, **keywords)
        # The base class has turned averaging off in this step, so compression starts with the next.
        if averaged and not self.deepspeed.on:
            self._bound_updates()
        return None

    @torch.no_grad()
    def _bound_updates(self) -> None:
        """Raise small second moments so that no element moves by more than `MAX_UPDATE` learning rates per step.

        After compression, all elements of a tensor have the same absolute momentum. For elements whose gradients are
        close to zero (biases of keys, tokens that do not occur), dividing it by the square root of a tiny second moment
        would make the weights diverge.
        """
        for state in self.state.values():
            state["exp_avg_sq"].clamp_(min=float(state["exp_avg"].square().mean()) / MAX_UPDATE**2)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            super().load_state_dict(state_dict)


def _compress(values: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Return the packed signs (n / 8) and the scale () of values + error; store the rounding error in `error`."""
    values = values + error
    # The root mean square, so that the compressed vector has the same 2-norm.
    scale = values.norm() / values.numel() ** 0.5
    positive = values >= 0
    error.copy_(values - torch.where(positive, scale, -scale))
    return _pack(positive), scale


def _pack(bits: Tensor) -> Tensor:
    """Pack booleans (n) into bytes (n / 8), the first in the lowest bit."""
    return (bits.view(-1, 8) * _bit_values(bits.device)).sum(1, dtype=torch.uint8)


def _unpack(packed: Tensor) -> Tensor:
    """Unpack bytes (..., n / 8) to signs (..., n), 1.0 and -1.0."""
    return (packed[..., None] & _bit_values(packed.device)).ne(0).flatten(-2).float().mul_(2).sub_(1)


def _bit_values(device: torch.device) -> Tensor:
    """Return 1, 2, 4, ... 128, computed on the device: a copy from the host would wait for the GPU."""
    return 2 ** torch.arange(8, dtype=torch.uint8, device=device)
