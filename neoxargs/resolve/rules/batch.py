"""train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data parallel ranks.

Whatever two of the three are written determine the third. `batch_size` and `gas` are Megatron's and GPT-NeoX's
words for the micro batch and for the accumulation steps.
"""

from __future__ import annotations

from neoxargs.resolve.rules.rule import Contradiction, derives
from neoxargs.resolve.rules.shared_findings import nearest
from neoxargs.resolve.rules.synonyms import agreed
from neoxargs.sizes.layout import ranks_of_replica

TOTAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
RANKS = "data parallel ranks"
#: What the equation is about, GPT-NeoX's spellings too.
SIZES = (TOTAL, MICRO, STEPS, "batch_size", "gas")


@derives(*SIZES)
def batch_sizes_agree(
    train_batch_size: int | None,
    train_micro_batch_size_per_gpu: int | None,
    gradient_accumulation_steps: int | None,
    batch_size: int | None,
    gas: int | None,
    gpus: int,
    model_parallel_size: int,
    pipe_parallel_size: int,
) -> dict[str, int] | None:
    """train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data parallel ranks

    DeepSpeed asserts this equation on every rank, after all processes have been started and have found each other.
    Where it does not hold, the batch that the learning rate was chosen for is not the one that would be trained with.

        train_batch_size: 48
        train_micro_batch_size_per_gpu: 2
        gradient_accumulation_steps: 2
    """
    ranks, left_over = divmod(gpus, ranks_of_replica(model_parallel_size, pipe_parallel_size))
    if ranks == 0 or left_over:
        return None  # `gpus_hold_whole_replicas` says so
    micro = agreed({MICRO: train_micro_batch_size_per_gpu, "batch_size": batch_size})
    steps = agreed({STEPS: gradient_accumulation_steps, "gas": gas})
    total, micro, steps = solved(train_batch_size, micro, steps, ranks)
    return {TOTAL: total, MICRO: micro, STEPS: steps, "batch_size": micro, "gas": steps}


def solved(total: int | None, micro: int | None, steps: int | None, ranks: int) -> tuple[int, int, int]:
    """The three sizes; where nothing else follows, one micro batch per step, as DeepSpeed decides it."""
    if total is None and micro is None:
        raise Contradiction(
            f"nothing says how large a batch is: {TOTAL} and {MICRO} have no value",
            f"write {MICRO}, the number of samples a GPU takes at once",
            about=[TOTAL, MICRO],
        )
    if total is None:
        assert micro is not None
        steps = steps or 1
        return micro * steps * ranks, micro, steps
    if micro is None:
        steps = steps or 1
        return total, _quotient(total, MICRO, STEPS, steps, ranks), steps
    if steps is None:
        return total, micro, _quotient(total, STEPS, MICRO, micro, ranks)
    if total != micro * steps * ranks:
        raise _unequal(total, micro, steps, ranks)
    return total, micro, steps


def _quotient(total: int, missing: str, name: str, factor: int, ranks: int) -> int:
    """The factor that is missing, if it is whole."""
    unit = factor * ranks
    if total % unit == 0:
        return total // unit
    raise Contradiction(
        f"{TOTAL} ({total}) must be a multiple of {name} ({factor}) x {RANKS} ({ranks}) = {unit}; no {missing} fits",
        f"nearest {TOTAL}: {nearest(total, unit)}",
        about=SIZES,
    )


def _unequal(total: int, micro: int, steps: int, ranks: int) -> Contradiction:
    """All three are written and the equation does not hold: what each of them could be."""
    product = micro * steps * ranks
    fits = [f"{TOTAL}: {product}"]
    if total % (steps * ranks) == 0:
        fits.append(f"{MICRO}: {total // (steps * ranks)}")
    if total % (micro * ranks) == 0:
        fits.append(f"{STEPS}: {total // (micro * ranks)}")
    return Contradiction(
        f"{TOTAL} ({total}) is not {MICRO} ({micro}) x {STEPS} ({steps}) x {RANKS} ({ranks}) = {product}",
        f"leave one of the three out, or write {' or '.join(fits)}",
        about=SIZES,
    )
