"""Records what the operators of a traced rank allocate, compute and communicate.

Every operator that reaches torch's dispatcher, in the forward and in the backward pass, passes through `Recorder`.
Memory: the storages that operators return, from their allocation until the last reference to them is dropped; what a
kernel allocates only while it runs is not seen. FLOPs: torch.utils.flop_counter's formulas. Attention counts as if it
were not causal, with five matrix products in the backward pass of a fused kernel, which computes the scores again.
Communication: the operators of torch.distributed, with the size of what each sends.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

#: Kinds of memory. Gradients of weights and what exists before the trace are counted by no test of this program.
ACTIVATIONS, LOGITS, PIPELINE, GRADIENTS = "activations", "logits", "pipeline buffers", "gradients"


class Message(NamedTuple):
    """A collective or a point to point message."""

    operator: str
    """all_reduce, all_gather, reduce_scatter, send or recv."""
    size: int
    """Bytes of the full tensor of a collective, on each rank; bytes that are sent or received otherwise."""
    floats: bool
    """Whether it carries values; integers describe a tensor that follows."""
    group: str
    """The name of the process group."""


@dataclass
class Work:
    """What all operators do together."""

    flops: float = 0.0
    seconds: float = 0.0
    """By the roofline: the larger of flops / peak rate and memory traffic / bandwidth, for each operator by itself."""
    moved: float = 0.0
    """Bytes that all operators without products read and write, with what their kernels read twice."""


@dataclass(frozen=True)
class Roof:
    """Peak rates of a device: operations per second in 16 bits and in fp32, bytes per second of its memory."""

    half: float
    single: float
    bandwidth: float


@dataclass
class Peak:
    """The moment at which tensors of the kinds asked for occupied the most memory."""

    total: int
    """Bytes."""
    tensors: Counter[str]
    """Kind, operator, type and shape of what existed then -> bytes."""


class Recorder(TorchDispatchMode):
    """Record the operators that run while this mode is active."""

    def __init__(self, roof: Roof) -> None:
        super().__init__()
        self.roof = roof
        self.total = Work()
        self.messages: list[Message] = []
        self.kind = ACTIVATIONS
        #: (storage's number, bytes allocated or, negative, freed), in the order of time.
        self.events: list[tuple[int, int]] = []
        #: storage's number -> kind of memory
        self.kinds: dict[int, str] = {}
        #: storage's number -> the operator that allocated it, type and shape
        self.labels: dict[int, str] = {}
        self._next = itertools.count()
        self._numbers: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[Any]] = {}

    # --- memory -------------------------------------------------------------------------------------------------------

    @contextmanager
    def allocating(self, kind: str) -> Iterator[None]:
        """Count what is allocated within the block as memory of this kind."""
        before, self.kind = self.kind, kind
        try:
            yield
        finally:
            self.kind = before

    def ignore(self, tensors: Any) -> None:
        """Do not count these tensors: they existed before the trace."""
        for tensor in tensors:
            self._number(tensor, counted=False)

    def recount(self, tensor: Tensor | None, kind: str) -> None:
        """Count a tensor as memory of another kind, from its allocation on."""
        if isinstance(tensor, Tensor):
            number = self._number(tensor)
            if number in self.kinds:
                self.kinds[number] = kind

    def peak(self, *kinds: str) -> Peak:
        """Return when tensors of these kinds occupied the most bytes."""
        events = [(number, size) for number, size in self.events if self.kinds[number] in kinds]
        sums = list(itertools.accumulate(size for _, size in events))
        if not sums:
            return Peak(0, Counter())
        alive: Counter[int] = Counter()
        for number, size in events[: sums.index(max(sums)) + 1]:
            alive[number] += size
        tensors: Counter[str] = Counter()
        for number, size in alive.items():
            tensors[f"{self.kinds[number]}: {self.labels[number]}"] += size
        return Peak(max(sums), +tensors)

    def _number(self, tensor: Tensor, counted: bool = True, operator: str = "") -> int:
        storage = tensor.untyped_storage()
        # The address of torch's own object, which all Python objects of a storage share.
        key = storage._cdata
        if key not in self._numbers:
            number = self._numbers[key] = next(self._next)
            self._alive[key] = weakref.ref(storage, partial(self._freed, key, storage.nbytes() if counted else 0))
            if counted:
                self.kinds[number] = self.kind
                self.labels[number] = f"{operator} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
                self.events.append((number, storage.nbytes()))
        return self._numbers[key]

    def _freed(self, key: int, size: int, _: Any) -> None:
        number = self._numbers.pop(key)
        del self._alive[key]
        if size:
            self.events.append((number, -size))

    # --- operators ----------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = _tensors((args, kwargs))
        if func.namespace == "c10d":
            self._communicate(func, args)
            return func(*args, **kwargs)
        before = {x.untyped_storage()._cdata for x in inputs}
        result = func(*args, **kwargs)
        outputs = [x for x in _tensors(result) if x.device.type == "meta"]
        for output in outputs:
            self._number(output, operator=func._overloadpacket.__name__)
        if outputs and (func._schema.is_mutable or any(x.untyped_storage()._cdata not in before for x in outputs)):
            self._compute(func, args, kwargs, inputs, outputs, result)
        return result

    def _compute(
        self, func: Any, args: Any, kwargs: Any, inputs: list[Tensor], outputs: list[Tensor], result: Any
    ) -> None:
        formula = flop_registry.get(_without_underscore(func._overloadpacket))
        flops = formula(*args, **kwargs, out_val=result) if formula else 0
        traffic = _traffic(func, inputs, outputs)
        is_half = any(x.is_floating_point() and x.element_size() == 2 for x in inputs)
        rate = self.roof.half if is_half else self.roof.single
        self.total.flops += flops
        self.total.seconds += max(flops / rate, traffic / self.roof.bandwidth)
        if not formula:
            twice = _bytes(inputs[:2]) if func._overloadpacket.__name__ in READS_TWICE else 0
            self.total.moved += traffic + twice

    def _communicate(self, func: Any, args: Any) -> None:
        operator = MESSAGES.get(func._overloadpacket.__name__)
        if operator is not None:
            whole = max(map(_tensors, args), key=_bytes)  # of a gather its outputs, of a scatter its inputs
            place = [argument.name for argument in func._schema.arguments].index("process_group")
            group = dist.ProcessGroup.unbox(args[place]).group_name
            self.messages.append(Message(operator, _bytes(whole), whole[0].is_floating_point(), group))


#: Operator of torch.distributed -> the name of what it does.
MESSAGES = {
    "allreduce_": "all_reduce",
    "_allgather_base_": "all_gather",
    "alltoall_base_": "all_to_all",
    "allgather_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "send": "send",
    "recv_": "recv",
    "broadcast_": "broadcast",
}
#: Operators that only allocate.
ALLOCATING = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
#: Operators that read the rows of a table which they are asked for, not the table.
READS_ROWS = ("embedding", "index_select", "index", "gather")
#: Operators that read their first two inputs once for the gradient of the input and once for that of the weights.
READS_TWICE = ("native_layer_norm_backward",)


def _traffic(func: Any, inputs: list[Tensor], outputs: list[Tensor]) -> float:
    """Return the bytes that an operator reads and writes, if it reads every input and writes every output once."""
    name = func._overloadpacket.__name__
    if name in ALLOCATING:
        return 0.0
    written = _bytes(outputs)
    if name in READS_ROWS:
        return float(2 * written)
    return float(written + _bytes(inputs) - (written if name == "copy_" or _writes_out(func) else 0))


def _writes_out(func: Any) -> bool:
    """Whether the result goes to an argument `out`, which is among the inputs and is not read."""
    return any(argument.is_out for argument in func._schema.arguments)


def _without_underscore(packet: Any) -> Any:
    """Return the operator that writes to a new tensor instead of in place."""
    name = packet.__name__
    return getattr(torch.ops.aten, name.rstrip("_"), packet) if name.endswith("_") else packet


def _tensors(values: Any) -> list[Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def _bytes(tensors: list[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)
