"""What other ranks wait for: rank 0 may need hours for it."""

from __future__ import annotations

import io
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from neoxargs.registry.generation import Generation
from neoxargs.train.evaluation.lm_eval_harness import Model
from neoxargs.train.generate import prompts
from neoxargs.train.process.from_rank0 import FromRank0
from tests.support.ranks import run_ranks


class Recorder(Model):
    """A harness whose model returns what it was asked."""

    def __init__(self) -> None:
        super().__init__(None, None)  # type: ignore[arg-type]
        self.asked: list[int] = []

    def score(self, rows: list[int]) -> list[int]:  # type: ignore[override]
        self.asked += rows
        return rows


def received() -> tuple[list[str], list[int], set[tuple[str, bool]]]:
    """The prompts and the requests that reach this rank, and the backends that it waits on, and whether for days."""
    waits = set()
    broadcast = dist.broadcast_object_list

    def recorded(items: list[object], source: int, group: dist.ProcessGroup) -> None:
        timeout = group._get_backend(torch.device("cpu")).options._timeout
        waits.add((dist.get_backend(group), timeout > timedelta(days=1)))
        broadcast(items, source, group)

    dist.broadcast_object_list = recorded
    main = dist.get_rank() == 0
    sys.stdin = io.StringIO("one\ntwo\n")
    typed = list(prompts(Generation(text_gen_type="interactive", prompt_end="\n"), main))
    model = Recorder()
    if main:
        model.call("score", [1, 2])
        model.call("end")
    else:
        model.serve()
    return typed, model.asked, waits


def test_prompts_and_tasks_are_waited_for_on_gloo_for_days() -> None:
    assert run_ranks(received, 2) == [(["one", "two"], [1, 2], {("gloo", True)})] * 2


def test_a_process_alone_waits_for_nobody() -> None:
    assert FromRank0().broadcast("item") == "item"
