"""Collectives between ranks that compute on the CPUs of one machine, through shared memory.

gloo sends everything through TCP connections; bench/shared_memory.py compares the two. Waiting ranks sleep, because
several may share a core.
"""

from __future__ import annotations

import mmap
import os
import socket
import uuid
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

#: Bytes of each rank's part of an exchange; larger tensors are exchanged in several parts.
PART = 1 << 22
#: Groups with more ranks use gloo, because each rank reads the data of all others.
MOST_RANKS = 8
OPERATIONS: dict[Any, Any] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.MIN: torch.minimum,
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64)


class Channel:
    """The shared memory of a group of ranks, and sockets with which they tell each other that data is there.

    All methods are collective; ranks of the group are counted from 0. Every rank reduces the data of all ranks in the
    order of the ranks, so the result is the same on each.
    """

    def __init__(self, rank: int, memory: int, others: dict[int, socket.socket], timeout: float) -> None:
        """memory: a file descriptor. others: the socket to each other rank. timeout: seconds to wait for one."""
        self.rank, self.others, self.size = rank, others, 1 + len(others)
        for other in others.values():
            other.settimeout(timeout)
        self.memory = mmap.mmap(memory, _memory_size(self.size))
        # The mapping stays valid without the descriptor.
        os.close(memory)
        self.exchanges = torch.frombuffer(self.memory, dtype=torch.uint8).view(2, self.size, PART)
        self.turn = 0
        self.unfinished: Reduction | None = None

    def start_all_reduce(self, x: Tensor, operation: Any = dist.ReduceOp.SUM) -> Reduction:
        """Begin to reduce the contiguous x, of any shape, over the ranks in place; it must not change until `wait`."""
        # One reduction at a time: `put` has memory for the parts of one exchange and of the next only.
        self._finish()
        self.unfinished = Reduction(self, x.detach().view(-1), OPERATIONS[operation])
        return self.unfinished

    def broadcast(self, x: Tensor, source: int) -> None:
        """Copy the contiguous x of rank `source` to every rank."""
        self._finish()
        for part in _parts(x.detach().view(-1)):
            # All ranks take part in the notices, also the receivers, so that everyone knows when a memory may be
            # written again.
            slots = self.put(part if source == self.rank else part[:0])
            self.wait_for_all()
            if source != self.rank:
                part.copy_(_view(slots[source], part))

    def close(self) -> None:
        for other in self.others.values():
            other.close()

    def put(self, part: Tensor) -> Tensor:
        """Show this rank's data to the others; return that of all, (ranks, PART) bytes, valid after `wait_for_all`.

        Two memories alternate. When a rank writes to one again, all others have read it: since then each has begun the
        exchange in the other one.
        """
        slots: Tensor = self.exchanges[self.turn]
        self.turn = 1 - self.turn
        _view(slots[self.rank], part).copy_(part)
        for other in self.others.values():
            try:
                other.send(b"1")
            except ConnectionError as error:
                raise Lost(f"shared memory: {error.strerror}") from None
        return slots

    def wait_for_all(self) -> None:
        """Wait until all other ranks have called `put`."""
        for other in self.others.values():
            try:
                with torch.profiler.record_function("shared memory: wait for another rank"):
                    notice = other.recv(1)
            except TimeoutError:
                waited = f"timed out after {other.gettimeout():.0f} s"
                raise Lost(f"shared memory: {waited}, because another rank of this host did not answer") from None
            except ConnectionError as error:
                raise Lost(f"shared memory: {error.strerror}") from None
            # An empty read means that the other end is closed.
            if not notice:
                raise Lost("shared memory: Connection closed by peer")

    def _finish(self) -> None:
        if self.unfinished is not None:
            self.unfinished.wait()


class Reduction:
    """An all-reduce that has begun."""

    def __init__(self, channel: Channel, x: Tensor, operation: Any) -> None:
        self.channel, self.x, self.operation = channel, x, operation
        self.parts = _parts(x)
        self.slots = channel.put(self.parts[0])

    def wait(self) -> None:
        """Wait for the other ranks, and write the result to the tensor."""
        # Done already: the next operation of the channel has waited for it.
        if self.channel.unfinished is not self:
            return
        for number, part in enumerate(self.parts):
            # The first part was written when the reduction began, so that other ranks need not wait for this one's
            # computation.
            slots = self.channel.put(part) if number else self.slots
            self.channel.wait_for_all()
            self._reduce(part, slots)
        self.channel.unfinished = None

    def is_completed(self) -> bool:
        return self.channel.unfinished is not self

    def _reduce(self, part: Tensor, slots: Tensor) -> None:
        # In the order of the ranks, not this rank's first: floating-point sums depend on the order.
        data = [_view(slot, part) for slot in slots]
        self.operation(data[0], data[1], out=part)
        for other in data[2:]:
            self.operation(part, other, out=part)


def open_channel(group: dist.ProcessGroup | None, timeout: float) -> Channel | None:
    """Return a channel between the ranks of a group; None if they are on several machines, or too many. Collective.

    timeout: seconds after which waiting for another rank fails.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if not 1 < size <= MOST_RANKS:
        return None
    # A name in Linux' abstract namespace, which needs no file and vanishes with the socket.
    address = f"\0deepy-{uuid.uuid4()}"
    listener = _listen(address) if rank == 0 else None
    found: list[Any] = [None] * size
    # Over the group's gloo connections; it also tells every rank the address of rank 0's socket.
    dist.all_gather_object(found, (_machine_id(), address), group)
    # Also if only one rank differs: all come to the same decision, because all have the same list.
    if len({machine for machine, _ in found}) > 1 or not found[0][0]:
        if listener is not None:
            listener.close()
        return None
    if listener is not None:
        memory, others = _distribute(listener, size)
    else:
        memory, others = _receive(found[0][1], rank, size)
    return Channel(rank, memory, others, timeout)


def _listen(address: str) -> socket.socket | None:
    if not hasattr(os, "memfd_create"):  # not Linux
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    return listener


def _distribute(listener: socket.socket, size: int) -> tuple[int, dict[int, socket.socket]]:
    """Make the memory and a socket for each two ranks, send all other ranks theirs, and return those of rank 0."""
    memory = os.memfd_create("deepy")
    os.ftruncate(memory, _memory_size(size))  # takes memory only where something is written
    # One socket for each two ranks, so that notices of different ranks cannot be confused.
    ends: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for first, second in combinations(range(size), 2):
        ends[first][second], ends[second][first] = socket.socketpair()
    with listener:
        for _ in range(size - 1):
            connection, _ = listener.accept()
            with connection:
                # A rank sends its number first, because connections come in any order.
                own = ends[connection.recv(1)[0]]
                descriptors = [own[other].fileno() for other in sorted(own)]
                socket.send_fds(connection, [b"1"], [memory, *descriptors])
                for end in own.values():
                    end.close()
    return memory, ends[0]


def _receive(address: str, rank: int, size: int) -> tuple[int, dict[int, socket.socket]]:
    """Return the memory and the sockets that rank 0 sends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(address)
        connection.send(bytes([rank]))
        _, (memory, *descriptors), _, _ = socket.recv_fds(connection, 1, size)
    others = [other for other in range(size) if other != rank]
    return memory, {other: socket.socket(fileno=end) for other, end in zip(others, descriptors, strict=True)}


def _machine_id() -> str:
    """Return what is equal for processes that reach each other through such sockets; "" if there are none."""
    boot, network = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")
    # Processes in different containers may have the same kernel but other networks, and abstract sockets belong to a
    # network.
    if not hasattr(os, "memfd_create") or not boot.exists():
        return ""
    return boot.read_text() + os.readlink(network)


def _memory_size(size: int) -> int:
    return 2 * size * PART


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    """Divide a tensor of one dimension; an empty one is one part."""
    return torch.split(x, PART // x.element_size())


def _view(memory: Tensor, part: Tensor) -> Tensor:
    """Return the beginning of a memory with the type and the size of a part of a tensor."""
    return memory.view(part.dtype)[: len(part)]


class Lost(RuntimeError):
    """Another rank has ended, or does not answer. The words are those that processes/failures.py looks for."""
