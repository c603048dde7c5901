"""train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data parallel ranks.

Any two of the three sizes determine the third. `batch_size` and `gas` are the names of Megatron and GPT-NeoX for the
micro batch size and for the accumulation steps.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from neoxargs.base.problems import listed
from neoxargs.facts.batch_sizes import PARTS, PHASES, RAMP, BatchSizes, begins_of_phases
from neoxargs.facts.layout import ranks_of_replica
from neoxargs.facts.mistakes import Mistakes
from neoxargs.resolve.rules.rule import Contradiction, Findings, check, derives, refuse, refuse_phases, warn
from neoxargs.resolve.rules.shared_findings import nearest
from neoxargs.resolve.rules.synonyms import agreed_value, ignored

TOTAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
RANKS = "data parallel ranks"
#: The parameters that set the length of the run.
LENGTH = ("train_iters", "train_epochs", "train_samples")
#: The share by which a ramp may make a run longer.
LONGER = 0.1
#: The parameters that determine the number of data parallel ranks.
SIZES = ("model_parallel_size", "pipe_parallel_size", "context_parallel_size")
#: Every parameter in the equation, GPT-NeoX's spellings included.
BATCH_PARAMETERS = (TOTAL, MICRO, STEPS, "batch_size", "gas")


@derives(*BATCH_PARAMETERS, even_without=("gpus", *SIZES))
def batch_sizes_agree(  # noqa: PLR0913, PLR0917 - the terms of the equation
    train_batch_size: int | None,
    train_micro_batch_size_per_gpu: int | None,
    gradient_accumulation_steps: int | None,
    batch_size: int | None,
    gas: int | None,
    gpus: int | None,
    model_parallel_size: int | None,
    pipe_parallel_size: int | None,
    context_parallel_size: int | None,
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
    sizes = [each for each in (model_parallel_size, pipe_parallel_size, context_parallel_size) if each is not None]
    if gpus is not None and len(sizes) == len(SIZES):
        ranks, left_over = divmod(gpus, ranks_of_replica(*sizes))
    if ranks == 0 or left_over:  # unknown, or reported by `gpus_hold_whole_replicas`
        refuse_any_ranks(train_batch_size, micro, steps)
        return None
    total, micro, steps = solve_batch_sizes(train_batch_size, micro, steps, ranks)
    return {TOTAL: total, MICRO: micro, STEPS: steps, "batch_size": micro, "gas": steps}


@check
def gas_accumulated_nothing_in_gpt_neox(gas: int, written: Collection[str]) -> Findings:
    """GPT-NeoX replaces gas with gradient_accumulation_steps, which is 1 if it is not set. A run that sets only gas
    accumulates here, but did not in GPT-NeoX: its batch becomes larger, with the same learning rate.

        gas: 4
    """
    if gas != 1 and "gas" in written and {STEPS, TOTAL}.isdisjoint(written):
        what = f"gas ({gas}) sets {STEPS}, but GPT-NeoX ignored gas and did not accumulate gradients"
        advice = f"set {STEPS}: {gas} instead, or remove gas to keep GPT-NeoX's batch size"
        yield warn(what, advice)


@check
def batch_ramp_has_whole_micro_batches(
    rampup_batch_size: Sequence[int] | None, train_batch_size: int, gradient_accumulation_steps: int
) -> Findings:
    """A ramp is [start, increment, samples]: the batch grows from start to train_batch_size by equal increments, and
    each batch consists of whole micro batches on every data parallel rank. With other numbers, Megatron-LM stops on
    every rank, some of them only when the batch grows.

        train_batch_size: 64
        train_micro_batch_size_per_gpu: 4
        rampup_batch_size: [15, 10, 1000]
    """
    if rampup_batch_size is None:
        return
    given, about = f"{RAMP} ({list(rampup_batch_size)})", [RAMP, TOTAL]
    if len(rampup_batch_size) != len(PARTS):
        what = f"{given} must be a list of {len(PARTS)} numbers: {listed(PARTS, 'and')}"
        yield refuse(what, f"write {RAMP}: [{', '.join(PARTS)}]", about=about)
        return
    start, increment, samples = rampup_batch_size
    unit = train_batch_size // gradient_accumulation_steps
    if start >= train_batch_size:
        what = f"{given} starts with {start} samples, and must start below {TOTAL} ({train_batch_size})"
        yield refuse(what, f"start with fewer samples, or remove {RAMP}", about=about)
    elif start % unit or increment % unit or (train_batch_size - start) % increment:
        total = f"{TOTAL} ({train_batch_size})"
        if gradient_accumulation_steps == 1:
            what = f"{given} needs batches of whole micro batches on every rank, and {total} has one"
            hint = f"set a smaller {MICRO}, or remove {RAMP}"
        else:
            what = f"{given} must reach {total} in equal steps, by multiples of {MICRO} x {RANKS} ({unit})"
            hint = f"set {RAMP} to {[*_nearest_ramp(start, increment, train_batch_size, unit), samples]}"
        yield refuse(what, hint, about=[*about, MICRO])


def _nearest_ramp(start: int, increment: int, total: int, unit: int) -> tuple[int, int]:
    """Return the start and the increment nearest to the given ones with which a ramp to `total` has whole units."""
    first = min(range(unit, total, unit), key=lambda each: abs(each - start))
    left = total - first
    steps = (each for each in range(unit, left + 1, unit) if left % each == 0)
    return first, min(steps, key=lambda each: abs(each - increment))


@check
def batch_phases_have_whole_micro_batches(
    batch_size_schedule: Sequence[Any] | None, rampup_batch_size: Sequence[int] | None, train_batch_size: int,
    gradient_accumulation_steps: int, seq_length: int,
) -> Findings:  # fmt: skip
    """batch_size_schedule lists the sizes of the batch in their order, up to train_batch_size, and each batch consists
    of whole micro batches on every data parallel rank.

        train_batch_size: 64
        train_micro_batch_size_per_gpu: 4
        batch_size_schedule: [{until: 5, size: 10}, {until: 500 samples, size: 32}, {size: 48}]
    """
    if batch_size_schedule is not None and rampup_batch_size is not None:
        what = f"{PHASES} and {RAMP} both set the sizes of the batch"
        yield refuse(what, "remove one of them", about=[PHASES, RAMP])
        return

    def parse() -> None:
        sizes = [size for _, size in begins_of_phases(batch_size_schedule or (), seq_length)]
        _require_whole_micro_batches(sizes, train_batch_size, train_batch_size // gradient_accumulation_steps)

    yield from refuse_phases(PHASES, batch_size_schedule, parse)


def _require_whole_micro_batches(sizes: Sequence[int], train_batch_size: int, unit: int) -> None:
    """Raise Mistakes unless all sizes of phases are multiples of `unit`, the last one `train_batch_size`."""
    wrong: list[tuple[str, str, str]] = []
    for number, size in enumerate(sizes, 1):
        if size % unit:
            what = f"size ({size}) is no multiple of {MICRO} x {RANKS} ({unit})"
            wrong.append((f"phase {number}", what, f"set it to {nearest(size, unit)}"))
    if sizes[-1] != train_batch_size and not wrong:
        what = f"size ({sizes[-1]}) must be {TOTAL} ({train_batch_size})"
        hint = f"set {TOTAL}: {sizes[-1]}, or end with a phase of {train_batch_size} samples"
        wrong.append((f"phase {len(sizes)}", what, hint))
    if wrong:
        raise Mistakes(wrong)


def _sizes_and_name(
    batch: int, ramp: Sequence[int] | None, phases: Sequence[Any] | None, tokens: int
) -> tuple[BatchSizes, str]:
    """Return the batch sizes, and the parameter that changes them."""
    return BatchSizes.with_ramp(batch, ramp, phases, tokens), RAMP if phases is None else PHASES


@check
def batch_ramp_ends_before_the_run(
    rampup_batch_size: Sequence[int] | None, batch_size_schedule: Sequence[Any] | None, train_batch_size: int,
    seq_length: int, train_iters: int, written: Collection[str],
) -> Findings:  # fmt: skip
    """A ramp is for the beginning of a run. If the run ends before it, no batch has train_batch_size samples, for which
    the learning rate was chosen; that happens when a run is shortened, or when samples are taken for iterations.

        train_batch_size: 64
        train_iters: 10
        rampup_batch_size: [16, 16, 10000]
    """
    sizes, name = _sizes_and_name(train_batch_size, rampup_batch_size, batch_size_schedule, seq_length)
    if sizes.changes and sizes.of_iteration(train_iters - 1) != sizes.last:
        reached, samples = sizes.of_iteration(train_iters - 1), sizes.samples_after(train_iters)
        what = f"the run ends before the ramp of the batch: its {train_iters} iterations read {samples} samples, and "
        what += f"{name} reaches {train_batch_size} after {sizes.begins[-1][0]}; the last batch has {reached} samples"
        end = f"the last number of {RAMP}" if name == RAMP else "the last until"
        hint = f"set {end} to less than {samples}{' samples' * (name != RAMP)}, or increase train_iters"
        yield warn(what, hint, about=[name, *(name for name in LENGTH if name in written)])


@check
def batch_ramp_keeps_the_pipeline_busy(
    rampup_batch_size: Sequence[int] | None, batch_size_schedule: Sequence[Any] | None, train_batch_size: int,
    seq_length: int, gradient_accumulation_steps: int, pipe_parallel_size: int, train_iters: int,
) -> Findings:  # fmt: skip
    """A step of a pipeline with p stages and m micro batches takes as long as m + p - 1 micro batches. The small
    batches of a ramp have few micro batches and make many steps, so that a long ramp can take much more time than the
    same samples in full batches.

        num_layers: 8
        pipe_parallel_size: 8
        train_batch_size: 128
        train_iters: 1000
        rampup_batch_size: [2, 2, 20000]
    """
    sizes, name = _sizes_and_name(train_batch_size, rampup_batch_size, batch_size_schedule, seq_length)
    if not sizes.changes or pipe_parallel_size < 2:
        return
    unit, fill = train_batch_size // gradient_accumulation_steps, pipe_parallel_size - 1
    time = sum(count * (size // unit + fill) for size, count in sizes.iterations_by_size(train_iters).items())
    full = sizes.samples_after(train_iters) / train_batch_size * (gradient_accumulation_steps + fill)
    if (longer := time / full - 1) >= LONGER:
        stages, first = f"{pipe_parallel_size} pipeline stages", f"{sizes.first // unit} micro batch"
        what = f"{name} makes the run about {longer:.0%} longer than full batches would, because the {stages} wait in "
        what += f"small batches: the first have {first}{'es' * (sizes.first > unit)}"
        start = max(2 * pipe_parallel_size * unit, 2 * sizes.first)
        larger = f"start with a larger batch, such as {start}, or " if start < train_batch_size else ""
        yield warn(what, f"{larger}ramp over fewer samples", about=[name, "pipe_parallel_size"])


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
