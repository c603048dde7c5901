"""Processes that read ahead, and signals."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator

import torch
from torch import Tensor

from neoxargs.train.batches.loader import batches
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.process.mesh import ALONE
from tests.support.ranks import CPU, forked_from


class Samples:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = torch.full((4,), index)
        return {"tokens": row, "labels": row, "loss_mask": torch.ones(4)}


#: Keeps a loader until its process ends, as the traceback of an error does.
kept: list[Iterator[MicroBatch]] = []


def signalled() -> None:
    """Read while somebody else sends signals to the worker, then end without closing the loader."""
    multiprocessing.set_start_method("fork", force=True)  # as in train.py; this process was started in another way
    kept.append(batches(Samples(), 0, ALONE, micro_batch=2, workers=1))
    next(kept[0])
    (worker,) = multiprocessing.active_children()
    if not os.fork():  # by another process: a worker obeys its rank
        os.kill(worker.pid or 0, signal.SIGTERM)
        os.kill(worker.pid or 0, signal.SIGINT)
        os.kill(worker.pid or 0, signal.SIGHUP)
        os._exit(0)
    os.wait()
    for index in range(2, 22, 2):
        assert next(kept[0]).tokens[:, 0].tolist() == [index, index + 1]


def test_a_worker_obeys_its_rank_only() -> None:
    """At its end, Python sends SIGTERM to the workers and waits for them."""
    process = multiprocessing.get_context("forkserver").Process(target=signalled)
    with forked_from(CPU.preload):
        process.start()
    process.join(60)
    try:
        assert process.exitcode == 0
    finally:
        process.kill()
