"""Checkpoints that deepy wrote on 23 November 2026, before they had a format number, are resumed as by that deepy.

On the machine that wrote them, losses are equal bit for bit (`tests.support.old_checkpoints` compares them); other CPUs
add in other orders, so the tolerance here is that of fp32.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import old_checkpoints as old

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CLOSE = 1e-4


def difference(one: old.Steps, other: old.Steps) -> float:
    """Return the largest difference of a value, relative to the other run's."""
    assert [step["step"] for step in one] == [step["step"] for step in other] == [4, 5, 6]
    return max(abs(a[name] - b[name]) / b[name] for a, b in zip(one, other, strict=True) for name in b)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return old.unpack(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", old.RUNS)
def test_it_continues_as_if_it_had_not_stopped(name: str, folder: Path) -> None:
    assert difference(old.resumed(folder, name), old.uninterrupted(folder, name)) < CLOSE


def test_the_tolerance_notices_a_lost_optimizer_state(folder: Path, tmp_path: Path) -> None:
    again = old.unpack(tmp_path)
    without = old.resumed(again, "plain", "--set", "no_load_optim=true")
    assert difference(without, old.uninterrupted(folder, "plain")) > 100 * CLOSE
