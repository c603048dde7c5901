"""How long a rank may take is learnt from its steps, and longer for what takes longer."""

from __future__ import annotations

import os

import pytest

from neoxargs.processes.watch import Progress, Watch, main_thread, waits_for_others


class Spy(Watch):
    """What was announced."""

    def __init__(self) -> None:
        self.announced: list[tuple[str, float]] = []
        super().__init__()

    def expect(self, what: str, seconds: float) -> None:
        self.announced.append((what, seconds))


def announced(*steps: float, fixed: float | None = None) -> list[tuple[str, float]]:
    """What a rank announces whose steps take so long, with an evaluation at the end."""
    spy = Spy()
    progress = Progress(spy, fixed)
    for number, seconds in enumerate(steps, 1):
        progress.step(number)
        progress.took(seconds)
    progress.long("evaluation")
    progress.done()
    return spy.announced


def test_limits_are_learnt() -> None:
    """From the median, so that the first step and a slow one do not matter; never below a generous floor."""
    assert announced(60, 0.1, 0.1, 0.1, 50) == [
        ("step 1", 1800), ("step 2", 1800), ("step 3", 901.5), ("step 4", 180), ("step 5", 180),
        ("evaluation", 1800), ("", float("inf")),
    ]  # fmt: skip
    assert announced(20, 20, 20)[-2:] == [("evaluation", 6000), ("", float("inf"))]


def test_limits_that_are_set_and_none() -> None:
    assert announced(1, 2, fixed=5) == [("step 1", 50), ("step 2", 5), ("evaluation", 50), ("", float("inf"))]
    assert {seconds for _, seconds in announced(1, 2, fixed=0)} == {float("inf")}


@pytest.mark.parametrize(("seconds", "late"), [(60, ""), (-1, "step 7 took longer than -1 s")])
def test_only_what_is_late_is_reported(seconds: float, late: str) -> None:
    watch = Watch()
    assert watch.late() == ""
    watch.expect("step 7", seconds)
    assert watch.late() == late


STACK = """\
Thread 0x0001 (most recent call first):
  File "/lib/threading.py", line 1 in wait

Current thread 0x0002 (most recent call first):
  File "{}", line 2 in {}
  File "/neoxargs/train/loop.py", line 3 in run
"""


def test_the_main_thread_is_the_last_of_a_stack() -> None:
    frames = main_thread(STACK.format("/a.py", "f"))
    assert frames == ['File "/a.py", line 2 in f', 'File "/neoxargs/train/loop.py", line 3 in run']
    assert main_thread("") == []


@pytest.mark.parametrize(
    ("file", "function", "waits"),
    [
        ("/torch/distributed/distributed_c10d.py", "all_reduce", True),
        ("/neoxargs/train/process/reading.py", "read", True),
        ("/torch/autograd/graph.py", "_engine_run_backward", True),
        ("/torch/utils/data/dataloader.py", "_next_data", False),
        ("/neoxargs/train/loop.py", "_step", False),
    ],
)
def test_a_rank_in_a_collective_operation_waits_for_others(file: str, function: str, waits: bool) -> None:
    assert waits_for_others(main_thread(STACK.format(file, function))) is waits


def test_a_deadline_is_never_read_while_it_is_half_written() -> None:
    watch = Watch()
    child = os.fork()
    if not child:
        for step in range(200_000):
            watch.expect(f"step {step}", 1000)
        os._exit(0)
    found = {watch.late()}
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        found |= {watch.late() for _ in range(1000)}
    assert found == {""}
