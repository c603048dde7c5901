"""Runs a function on several processes that communicate over gloo, with the environment that a launcher sets.

The function must be at the top level of a module; its arguments and result must be picklable.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from tests.support.ports import free_port

if TYPE_CHECKING:
    from neoxargs.train.process.mesh import Axis


class Machine(NamedTuple):
    """The device and environment of the ranks."""

    backend: str
    """The backend of torch.distributed."""
    preload: str
    """A module that is imported before the ranks are forked, which saves nine seconds per rank."""
    environment: dict[str, str]
    prepare: Callable[[], None] = lambda: None
    """Called before the first rank starts; may skip the test."""


CPU = Machine("gloo", "tests.support.warm", {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""})


def run_ranks(
    function: Callable[..., Any], world: int, *arguments: Any, timeout: float = 150, on: Machine = CPU
) -> list[Any]:
    """Call `function(*arguments)` on every rank and return the results in rank order.

    torch.distributed is initialised, with one thread per rank. If a rank fails, or after `timeout` seconds, all ranks
    are killed and the test fails with the last output of each.
    """
    on.prepare()
    context = multiprocessing.get_context("forkserver")
    environment = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with TemporaryDirectory() as folder:
        ranks, ends = [], []
        for rank in range(world):
            own = environment | on.environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            receiver, sender = context.Pipe(duplex=False)
            log = Path(folder) / f"rank{rank}.log"
            call = sender, log, own, on.backend, function, arguments
            ranks.append(context.Process(target=_rank, args=call, daemon=True))
            ends.append(receiver)
            with forked_from(on.preload):
                ranks[-1].start()
            sender.close()
        try:
            return _collect(ends, time.monotonic() + timeout, timeout)
        except Failure as failure:
            raise AssertionError(f"{failure}\n{_tails(folder)}") from None
        finally:
            for process in ranks:
                process.join(0 if sys.exc_info()[0] else 10)
                process.kill()
                process.join()


@contextmanager
def forked_from(preload: str) -> Iterator[None]:
    """Fork the processes that start within the block from one that has imported `preload`.

    multiprocessing has one fork server; ranks with a simulated GPU need another one than ranks on a CPU.
    """
    connect = _fork_server(preload).connect_to_new_process
    with patch.object(multiprocessing.forkserver, "connect_to_new_process", connect):
        yield


@cache
def _fork_server(preload: str) -> multiprocessing.forkserver.ForkServer:
    server = multiprocessing.forkserver.ForkServer()
    server.set_forkserver_preload([preload])
    return server


def all_ranks() -> Axis:
    """Return all ranks of the run as one axis, without importing DeepSpeed to create a mesh."""
    import torch.distributed as dist

    from neoxargs.train.process.mesh import Axis

    return Axis(dist.get_world_size(), dist.get_rank(), dist.group.WORLD)


class Failure(Exception):
    """A rank's traceback, or the ranks that did not finish in time."""


def _collect(ends: list[Connection], deadline: float, timeout: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(ends):
        missing = [end for rank, end in enumerate(ends) if rank not in results]
        ready = wait(missing, max(0.0, deadline - time.monotonic()))
        if not ready:
            unfinished = [rank for rank in range(len(ends)) if rank not in results]
            raise Failure(f"ranks {unfinished} did not finish within {timeout} s")
        for end in ready:
            rank = ends.index(end)  # type: ignore[arg-type]
            try:
                good, value = pickle.loads(end.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                good, value = False, "ended without a result"
            if not good:
                raise Failure(f"rank {rank}: {value}")
            results[rank] = value
    return [results[rank] for rank in range(len(ends))]


def _tails(folder: str, lines: int = 40) -> str:
    parts = []
    for log in sorted(Path(folder).glob("*.log")):
        text = log.read_text(errors="replace").splitlines()[-lines:]
        parts.append("\n".join([f"--- {log.stem}", *text]))
    return "\n".join(parts)


def _rank(
    end: Connection,
    log: Path,
    environment: dict[str, str],
    backend: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.environ.update(environment)
    with open(log, "w") as file:  # the file descriptors, so that output of C++ is redirected too
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    import torch  # not before the simulated GPU, whose package imports this module

    torch.set_num_threads(1)
    torch.distributed.init_process_group(backend)
    try:
        _send(end, True, function(*arguments))
    except BaseException:
        _send(end, False, traceback.format_exc())
        raise
    torch.distributed.barrier()  # rank 0 hosts the store, which the others still use
    torch.distributed.destroy_process_group()


def _send(end: Connection, good: bool, value: Any) -> None:
    # pickled here, because multiprocessing would pass tensors in shared memory that is freed when this process ends
    end.send_bytes(pickle.dumps((good, value)))
