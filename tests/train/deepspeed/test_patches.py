"""Every patch is still needed: the installed DeepSpeed has each fault."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

from neoxargs.train.deepspeed.patches import PATCHES

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
def test_deepspeed_still_has_the_fault(patch) -> None:
    assert answers()[patch.name], f"{patch.name} is mended in the installed DeepSpeed: take its row and patch out"


def test_each_row_is_one_fault() -> None:
    assert len({patch.name for patch in PATCHES}) == len({patch.is_needed for patch in PATCHES}) == len(PATCHES)
