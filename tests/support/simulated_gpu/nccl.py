"""NCCL for simulated GPUs: gloo that accepts only tensors on the device.

Every collective is complete when its call returns, so in a run that passes no two ranks wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from tests.support.simulated_gpu.start import device

#: Called with options objects and, from older names, with lists, which torch's own types do not say.
_Base: Any = dist.ProcessGroup


class Done(c10d.Work):
    """A completed collective."""

    def __init__(self, tensors: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.future: torch.futures.Future[Any] = torch.futures.Future()
        self.future.set_result(list(tensors))

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        return self.future

    def result(self) -> Any:
        return self.future.value()


class Communicator:
    """The backend of a group for one type of device; torch.distributed reads whether it supports splitting groups."""

    supports_splitting = False


class ProcessGroupNCCL(_Base):  # type: ignore[misc]
    """A process group with the name that torch.distributed uses for the backend `nccl`."""

    class Options:
        """The options of NCCL."""

        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self.config = type("Config", (), {})()

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        super().__init__(rank, size)
        self.gloo: Any = dist.ProcessGroupGloo(store, rank, size, options._timeout)

    def getBackendName(self) -> str:
        return "nccl"

    def name(self) -> str:
        return "nccl"

    def _set_sequence_number_for_group(self) -> None:
        pass

    # torch's groups, which are written in C++, store their name with their backends.
    group_name = ""

    def _set_group_name(self, name: str) -> None:
        self.group_name = name

    def _get_backend(self, device: Any) -> Communicator:
        return Communicator()

    # Collectives, under the names, of arguments too, that torch.distributed calls

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Done:
        return self._run("all_reduce", tensors, [], lambda out, _: self._reduce(out, opts))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Done:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Done:
        return self._run("reduce", tensors, [], lambda out, _: self.gloo.reduce(out, opts).wait())

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Done:
        return self._run("broadcast", tensors, [], lambda out, _: self.gloo.broadcast(out, opts).wait())

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Done:
        return self._run("all_gather", outputs[0], inputs, lambda out, into: self.gloo.allgather([out], into).wait())

    def all_gather_single(self, output: Tensor, mine: Tensor, opts: Any = None) -> Done:
        def gather(out: list[Tensor], into: list[Tensor]) -> None:
            self.gloo.allgather([list(out[0].view(-1).chunk(self.size()))], [into[0].reshape(-1)]).wait()

        return self._run("all_gather_single", [output], [mine], gather)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Done:
        for output, mine in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, mine)
        return Done(outputs)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Done:
        def scatter(out: list[Tensor], into: list[Tensor]) -> None:
            self._reduce(into, opts)
            out[0].copy_(into[self.rank()])

        return self._run("reduce_scatter", outputs, inputs[0], scatter)

    def reduce_scatter_single(self, output: Tensor, whole: Tensor, opts: Any = None) -> Done:
        def scatter(out: list[Tensor], into: list[Tensor]) -> None:
            self._reduce(into, opts)
            out[0].view(-1).copy_(into[0].view(-1).chunk(self.size())[self.rank()])

        return self._run("reduce_scatter_single", [output], [whole], scatter)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Done:
        for output, whole in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, whole, opts)
        return Done(outputs)

    def all_to_all_single(self, output: Tensor, mine: Tensor, to: Any, of: Any, opts: Any = None) -> Done:
        def exchange(out: list[Tensor], into: list[Tensor]) -> None:
            self.gloo.alltoall_base(out[0], into[0], to, of).wait()

        return self._run("all_to_all_single", [output], [mine], exchange)

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> Done:
        return self._run("send", [], tensors, lambda _, into: self.gloo.send(into, to, tag).wait())

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Done:
        return self._run("recv", tensors, [], lambda out, _: self.gloo.recv(out, source, tag).wait())

    def barrier(self, opts: Any = None) -> Done:
        self.gloo.barrier().wait()
        return Done()

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        self.barrier()

    # Older names of the same

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _start_coalescing(self, device: Any) -> None:
        pass

    def _end_coalescing(self, device: Any) -> Done:
        return Done()

    def _reduce(self, tensors: list[Tensor], opts: Any) -> None:
        """Reduce over the ranks in place, by default to the sum. A mean is a sum divided here: gloo has no mean."""
        how: Any = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        mean = how == dist.ReduceOp.AVG
        mine: Any = dist.AllreduceOptions()
        mine.reduceOp = dist.ReduceOp.SUM if mean else how
        for tensor in tensors:
            self.gloo.allreduce([tensor], mine).wait()
            if mean:
                tensor.div_(self.size())

    def _run(self, name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], call: Callable[..., object]) -> Done:
        """Run `call` on copies of the tensors in host memory, and copy the results back."""
        for tensor in (*outputs, *inputs):
            if not tensor.is_cuda:
                raise RuntimeError(f"No backend type associated with device type {tensor.device.type} ({name})")
            if not tensor.is_contiguous():
                raise ValueError(f"Tensors must be contiguous ({name})")
        with _inside(), torch.no_grad():
            out, into = [t.detach().cpu() for t in outputs], [t.detach().cpu() for t in inputs]
            call(out, into)
            for tensor, found in zip(outputs, out, strict=True):
                tensor.detach().copy_(found)
        return Done(outputs)


@contextmanager
def _inside() -> Iterator[None]:
    """Do not report copies within the block: real NCCL would not make them."""
    device().simulated_inside(1)
    try:
        yield
    finally:
        device().simulated_inside(-1)


def install() -> None:
    """Register ProcessGroupNCCL with torch.distributed."""
    dist.ProcessGroupNCCL = ProcessGroupNCCL  # type: ignore[misc]
    answers = {
        "ProcessGroupNCCL": ProcessGroupNCCL,
        "_NCCL_AVAILABLE": True,
        "default_pg_nccl_timeout": timedelta(minutes=10),
        # torch looks up the device in a list of backends, which a group written in Python does not have.
        "_get_object_coll_device": lambda group=None: "cuda",
        "_get_pg_default_device": lambda group=None: torch.device("cuda"),
    }
    for name, value in answers.items():
        setattr(c10d, name, value)
