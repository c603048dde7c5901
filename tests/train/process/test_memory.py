"""What counts as memory that some work takes."""

from __future__ import annotations

import torch

from neoxargs.train.process import memory

KIB = 256  # numbers in fp32


def test_what_is_there_at_the_same_time_counts() -> None:
    def work() -> None:
        first = torch.ones(100 * KIB)
        second = first + 1
        del first
        second * 2

    assert 200 * 1024 <= memory.peak_of(work) < 250 * 1024


def test_what_was_there_before_does_not() -> None:
    kept = []
    assert memory.peak_of(lambda: kept.append(torch.ones(500 * KIB))) >= 500 * 1024
    assert memory.peak_of(lambda: torch.ones(10 * KIB)) < 50 * 1024


def test_a_process_takes_more_than_its_tensors() -> None:
    assert memory.peak() > 50 * 2**20
