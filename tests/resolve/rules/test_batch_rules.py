"""train_batch_size = micro batch x accumulation x data parallel ranks, solved for whatever is missing."""

from __future__ import annotations

from itertools import product

import pytest

from neoxargs.resolve.rules.batch import solve_batch_sizes
from neoxargs.resolve.rules.rule import Contradiction
from tests.support.configure import configure
from tests.support.refused import refused

SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


@pytest.mark.parametrize(
    ("text", "total", "micro", "steps"),
    [
        ("train_micro_batch_size_per_gpu: 4", 32, 4, 1),
        ("batch_size: 4", 32, 4, 1),
        ("{train_micro_batch_size_per_gpu: 4, batch_size: 4, gradient_accumulation_steps: 3, gas: 3}", 96, 4, 3),
        ("{train_micro_batch_size_per_gpu: 4, gas: 3}", 96, 4, 3),
        ("train_batch_size: 64", 64, 8, 1),
        ("{train_batch_size: 64, gradient_accumulation_steps: 2}", 64, 4, 2),
        ("{train_batch_size: 64, train_micro_batch_size_per_gpu: 4}", 64, 4, 2),
        ("{train_batch_size: 64, train_micro_batch_size_per_gpu: auto, gradient_accumulation_steps: auto}", 64, 8, 1),
        ("{train_batch_size: auto, train_micro_batch_size_per_gpu: 2, gradient_accumulation_steps: auto}", 16, 2, 1),
        ("{train_batch_size: 64, train_micro_batch_size_per_gpu: 4, gradient_accumulation_steps: 2}", 64, 4, 2),
        ("{train_batch_size: 8, model_parallel_size: 2, pipe_parallel_size: 2}", 8, 4, 1),
        ("{train_batch_size: 8, pipe_parallel_size: 1}", 8, 1, 1),
    ],
)
def test_the_missing_size_is_computed(text: str, total: int, micro: int, steps: int) -> None:
    batch = configure(text, gpus=8, without="train_micro_batch_size_per_gpu").batch
    assert (batch.train_batch_size, batch.train_micro_batch_size_per_gpu) == (total, micro)
    assert (batch.batch_size, batch.gradient_accumulation_steps, batch.gas) == (micro, steps, steps)


@pytest.mark.parametrize("given", list(product((None, 1, 2, 3, 12), repeat=3)))
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_either_the_equation_holds_with_what_was_given_or_it_is_refused(
    given: tuple[int | None, ...], ranks: int
) -> None:
    try:
        found = solve_batch_sizes(*given, ranks)
    except Contradiction:
        total, micro, steps = given
        if total is not None:  # then no whole number makes the equation true
            known = (micro or 1) * (steps or 1) * ranks
            assert total % known or (micro and steps and total != known)
        else:
            assert micro is None
    else:
        assert found[0] == found[1] * found[2] * ranks
        assert all(written in (None, size) for written, size in zip(given, found, strict=True))


def test_a_batch_is_not_computed_for_gpus_that_do_not_fit() -> None:
    """One problem, about the GPUs; not a second one about the batch."""
    problems = refused(
        configure, "{train_batch_size: 7, model_parallel_size: 2}", gpus=3, without="train_micro_batch_size_per_gpu"
    )
    assert len(problems) == 1
