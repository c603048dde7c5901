"""train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data parallel ranks.

Any two of the three sizes determine the third. `batch_size` and `gas` are the names of Megatron and GPT-NeoX for the
micro batch size and for the accumulation steps.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from neoxargs.base.problems import listed
from neoxargs.facts.layout import ranks_of_replica
from neoxargs.resolve.rules.rule import Contradiction, Finding, check, derives, warn
from neoxargs.resolve.rules.shared_findings import nearest
from neoxargs.resolve.rules.synonyms import agreed_value, ignored

TOTAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
RANKS = "data parallel ranks"
#: Every parameter in the equation, GPT-NeoX's spellings included.
BATCH_PARAMETERS = (TOTAL, MICRO, STEPS, "batch_size", "gas")


@derives(*BATCH_PARAMETERS, even_without=("gpus", "model_parallel_size", "pipe_parallel_size"))
def batch_sizes_agree(
    train_batch_size: int | None,
    train_micro_batch_size_per_gpu: int | None,
    gradient_accumulation_steps: int | None,
    batch_size: int | None,
    gas: int | None,
    gpus: int | None,
    model_parallel_size: int | None,
    pipe_parallel_size: int | None,
) -> dict[str, int] | None:
    """train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data parallel ranks

    DeepSpeed asserts this equation on every rank, after all processes have started and joined the process group. If the
    equation does not hold, the run would not train with the batch size that the learning rate was chosen for.

        train_batch_size: 48
        train_micro_batch_size_per_gpu: 2
        gradient_accumulation_steps: 2
    """
    micro = agreed_value(
        {MICRO: train_micro_batch_size_per_gpu, "batch_size": batch_size}, advice=ignored("batch_size", MICRO)
    )
    steps = agreed_value({STEPS: gradient_accumulation_steps, "gas": gas}, advice=ignored("gas", STEPS))
    ranks, left_over = 0, 0
    if gpus is not None and model_parallel_size is not None and pipe_parallel_size is not None:
        ranks, left_over = divmod(gpus, ranks_of_replica(model_parallel_size, pipe_parallel_size))
    if ranks == 0 or left_over:  # unknown, or reported by `gpus_hold_whole_replicas`
        refuse_any_ranks(train_batch_size, micro, steps)
        return None
    total, micro, steps = solve_batch_sizes(train_batch_size, micro, steps, ranks)
    return {TOTAL: total, MICRO: micro, STEPS: steps, "batch_size": micro, "gas": steps}


@check
def gas_accumulated_nothing_in_gpt_neox(gas: int, written: Collection[str]) -> Finding | None:
    """GPT-NeoX replaces gas with gradient_accumulation_steps, which is 1 if it is not set. A run that sets only gas
    accumulates here, but did not in GPT-NeoX: its batch becomes larger, with the same learning rate.

        gas: 4
    """
    if gas == 1 or "gas" not in written or not {STEPS, TOTAL}.isdisjoint(written):
        return None
    what = f"gas ({gas}) sets {STEPS}, but GPT-NeoX ignored gas and did not accumulate gradients"
    advice = f"set {STEPS}: {gas} instead, or remove gas to keep GPT-NeoX's batch size"
    return warn(what, advice, about=["gas"])


def solve_batch_sizes(total: int | None, micro: int | None, steps: int | None, ranks: int) -> tuple[int, int, int]:
    """Return total, micro batch size and accumulation steps; steps default to 1 where they are not determined.

    DeepSpeed solves the equation in the same order. Raises Contradiction where there is no solution.
    """
    if total is None:
        micro = _given(micro)
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


def refuse_any_ranks(total: int | None, micro: int | None, steps: int | None) -> None:
    """Raise Contradiction if there is no solution for any number of ranks."""
    if total is None:
        _given(micro)
        return
    factors = {name: factor for name, factor in ((MICRO, micro), (STEPS, steps)) if factor is not None}
    if total % (unit := math.prod(factors.values())):
        product = " x ".join(f"{name} ({factor})" for name, factor in factors.items())
        raise Contradiction(
            f"{TOTAL} ({total}) must be a multiple of {product}, whatever the number of {RANKS}",
            f"set {TOTAL} to {nearest(total, unit)}",
            about=BATCH_PARAMETERS,
        )


def _given(micro: int | None) -> int:
    """Return the micro batch size that is set in a configuration without a total; raises Contradiction without it."""
    if micro is not None:
        return micro
    raise Contradiction(
        f"the batch size is missing: neither {TOTAL} nor {MICRO} is set",
        f"set {MICRO} to the number of samples per GPU in each micro batch",
        about=[TOTAL, MICRO],
    )


def _quotient(total: int, missing: str, name: str, factor: int, ranks: int) -> int:
    """Return the missing factor; raises Contradiction if it is not a whole number."""
    unit = factor * ranks
    if total % unit == 0:
        return total // unit
    raise Contradiction(
        f"{TOTAL} ({total}) must be a multiple of {name} ({factor}) x {RANKS} ({ranks}) = {unit}; "
        f"otherwise no value of {missing} works",
        f"set {TOTAL} to {nearest(total, unit)}",
        about=BATCH_PARAMETERS,
    )


def _unequal(total: int, micro: int, steps: int, ranks: int) -> Contradiction:
    """Return the error for three sizes that do not satisfy the equation, with the values that would."""
    product = micro * steps * ranks
    # Changing only one of the three; a factor only where the result is a whole number.
    fits = [f"{TOTAL} to {product}"]
    if total % (steps * ranks) == 0:
        fits.append(f"{MICRO} to {total // (steps * ranks)}")
    if total % (micro * ranks) == 0:
        fits.append(f"{STEPS} to {total // (micro * ranks)}")
    return Contradiction(
        f"{TOTAL} ({total}) must equal {MICRO} ({micro}) x {STEPS} ({steps}) x {RANKS} ({ranks}) = {product}",
        f"remove one of the three, or set {listed(fits)}",
        about=BATCH_PARAMETERS,
    )
