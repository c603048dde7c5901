"""Runs a function on several processes that can talk to each other over gloo, as a launcher would start them.

The function must be importable (top level of a test module) and so must its arguments and result be picklable.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from neoxargs.train.process.mesh import Axis


def run_ranks(function: Callable[..., Any], world: int, *arguments: Any, timeout: float = 150) -> list[Any]:
    """`function(*arguments)` on every rank; the results in rank order.

    torch.distributed is up when it is called, one thread per rank. The first rank that fails or the end of the time
    (seconds) ends all of them and fails the test with what every rank printed last.
    """
    context = _warm()
    environment = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    with TemporaryDirectory() as folder:
        ranks, ends = [], []
        for rank in range(world):
            mine = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            here, there = context.Pipe(duplex=False)
            log = Path(folder) / f"rank{rank}.log"
            ranks.append(context.Process(target=_rank, args=(there, log, mine, function, arguments), daemon=True))
            ends.append(here)
            ranks[-1].start()
            there.close()
        try:
            return _collect(ends, time.monotonic() + timeout, timeout)
        except Failure as failure:
            raise AssertionError(f"{failure}\n{_tails(folder)}") from None
        finally:
            for process in ranks:
                process.join(0 if sys.exc_info()[0] else 10)
                process.kill()
                process.join()


@cache
def _warm() -> ForkServerContext:
    """Ranks fork from one process that has imported everything: seven seconds less for each of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["neoxargs.train.run"])
    return context


def all_ranks() -> Axis:
    """Every rank of the run as one axis, without the cost of importing what makes a mesh."""
    import torch.distributed as dist

    return Axis(dist.get_world_size(), dist.get_rank(), dist.group.WORLD)


class Failure(Exception):
    """A rank's traceback, or that the time is up."""


def _collect(ends: list[Connection], deadline: float, timeout: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(ends):
        missing = [end for rank, end in enumerate(ends) if rank not in results]
        ready = wait(missing, max(0.0, deadline - time.monotonic()))
        if not ready:
            silent = [rank for rank in range(len(ends)) if rank not in results]
            raise Failure(f"ranks {silent} did not finish within {timeout} s")
        for end in ready:
            rank = ends.index(end)  # type: ignore[arg-type]
            try:
                good, value = pickle.loads(end.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                good, value = False, "ended without a word"
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
    end: Connection, log: Path, environment: dict[str, str], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(environment)
    with open(log, "w") as file:  # whole streams, so that C++ is heard too
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    try:
        _send(end, True, function(*arguments))
    except BaseException:
        _send(end, False, traceback.format_exc())
        raise
    torch.distributed.barrier()  # rank 0 holds the store that the others still need
    torch.distributed.destroy_process_group()


def _send(end: Connection, good: bool, value: Any) -> None:
    # Pickled here: multiprocessing would leave a tensor in memory that is gone when this process is.
    end.send_bytes(pickle.dumps((good, value)))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
