"""Every patch is still needed: the installed DeepSpeed has each fault that its version is said to have."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import deepspeed
import pytest

from neoxargs.registry.receivers import numbers
from neoxargs.train.deepspeed.patches import PATCHES, forget_times

ASK = """
import json, sys
from neoxargs.train.deepspeed.patches import PATCHES
answers = {patch.name: patch.is_needed() for patch in PATCHES}
print("answers", json.dumps(answers))
"""


@cache
def answers() -> dict[str, bool]:
    """Answers of all canaries, from a separate process in which no patch is applied."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ASK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("answers")]
    found: dict[str, bool] = json.loads(line.removeprefix("answers"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_deepspeed_has_the_fault_in_the_versions_of_its_row(patch) -> None:
    mended = bool(patch.mended_in) and numbers(deepspeed.__version__) >= numbers(patch.mended_in)
    assert answers()[patch.name] != mended, f"{patch.name}: DeepSpeed {deepspeed.__version__} {mended=}"


def test_each_row_is_one_fault() -> None:
    assert len({patch.name for patch in PATCHES}) == len({patch.is_needed for patch in PATCHES}) == len(PATCHES)


def test_the_pipeline_engine_forgets_the_time_of_a_step() -> None:
    from deepspeed.utils.timer import SynchronizedWallClockTimer

    timers = SynchronizedWallClockTimer()

    def train_batch(batches: int) -> int:
        timers("train_batch").start()
        timers("train_batch").stop()
        return batches + 1

    engine = SimpleNamespace(train_batch=train_batch, timers=timers)
    forget_times(engine)
    assert [engine.train_batch(number) for number in range(3)] == [1, 2, 3]
    assert timers("train_batch").event_timers == []
