"""Work on the documents of many files in several processes; the results are in the order of the documents.

Workers are started by a fork server, because a fork of a process in which torch or another library runs threads may
hang. They import neither torch nor Megatron, so starting one takes 0.1 s.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import forkserver, resource_tracker
from typing import Any, TypeVar

from neoxargs.data.text_files import MIB, Raw
from neoxargs.processes import interrupts
from neoxargs.processes.workers import obey_the_parent_only

Result = TypeVar("Result")

#: Limits of a chunk, the unit of work of a worker: large enough to hide the cost of the transfer between processes,
#: small enough to balance the load.
CHUNK_BYTES, CHUNK_DOCUMENTS = MIB, 2048
#: With fewer bytes of text per worker, starting one takes longer than it saves.
MIN_BYTES_PER_WORKER = 4 * MIB


def chunks(raws: Iterable[Raw]) -> Iterator[list[Raw]]:
    """Yield documents in chunks, the units of work."""
    chunk: list[Raw] = []
    size = 0
    for raw in raws:
        chunk.append(raw)
        # A piece of a plain file is read by the worker, which then has so many bytes.
        size += raw.size if raw.line is None else len(raw.line)
        if size >= CHUNK_BYTES or len(chunk) >= CHUNK_DOCUMENTS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def worker_count(total_bytes: int, requested: int | None) -> int:
    """Return the requested number of workers, or else one per core but at least 4 MiB of text for each."""
    return requested or max(1, min(len(os.sched_getaffinity(0)), total_bytes // MIN_BYTES_PER_WORKER))


def in_parallel(
    units: Iterator[list[Raw]],
    make: Callable[..., Callable[[list[Raw]], Result]],
    arguments: tuple[Any, ...],
    workers: int,
) -> Iterator[Result]:
    """Yield the results in order; at most 3 chunks per worker are in flight, however large the text is.

    make: imported by name in each worker; returns, from `arguments`, the function that works on a chunk.
    """
    context = multiprocessing.get_context("forkserver")
    resource_tracker.ensure_running()  # its start would end the delay of Ctrl-C
    # Or the server and every worker would print a traceback of their own. Workers begin with SIGTERM delayed, because
    # the threads that numpy starts when it is imported have the mask of that time (see `obey_the_parent_only`).
    with interrupts.ignored_by_children(), interrupts.delayed({signal.SIGTERM}):
        forkserver.ensure_running()
    waiting: deque[Future[Result]] = deque()
    with ProcessPoolExecutor(workers, context, initializer=_start, initargs=(make, arguments)) as pool:
        try:
            for unit in units:
                waiting.append(pool.submit(_work, unit))
                if len(waiting) >= 3 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            # Without waiting for chunks that have not begun, if the reader of the results stops.
            pool.shutdown(wait=True, cancel_futures=True)


class _Worker:
    """The global of a worker process, set by `_start`."""

    work: Callable[[list[Raw]], Any]


def _start(make: Callable[..., Callable[[list[Raw]], Any]], arguments: tuple[Any, ...]) -> None:
    """Prepare a worker."""
    obey_the_parent_only()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # no threads inside a worker: there is one worker per core already
    _Worker.work = make(*arguments)


def _work(chunk: list[Raw]) -> Any:
    return _Worker.work(chunk)
