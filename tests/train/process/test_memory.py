"""The peak memory of a process."""

from __future__ import annotations

from neoxargs.train.process import memory


def test_a_process_takes_more_than_its_tensors() -> None:
    assert memory.peak() > 50 * 2**20
