"""Flags that count iterations, samples or tokens: the length of the run, of the learning rate decay, of the warm-up."""

from __future__ import annotations

from collections.abc import Callable

from neoxargs.facts.batch_sizes import RAMP, BatchSizes
from neoxargs.migrate.megatron.reading import Option, Reading
from neoxargs.resolve.yaml.nodes import read_plain


def length(name: str) -> Callable[[Reading, Option], None]:
    """Convert a number of samples or tokens to iterations, rounded down as Megatron-LM does."""

    def read(reading: Reading, option: Option) -> None:
        unit = option.name.rpartition("-")[2]
        total, size = reading.number(option.name), _units_per_iteration(reading, unit)
        if not (total and size and 0 < size <= total):
            by = "global batch size" if unit == "samples" else "(global batch size x sequence length)"
            reading.leave_to_write(option, name, f"set {name} in the new file to {unit} / {by}")
            return
        rounding = ", rounded down" if total % size else ""
        if unit == "iters" or not (sizes := _sizes(reading)).changes:
            reading.set(name, int(total // size), f"{option.text} {unit} / {size:.12g}{rounding}")
            return
        samples = int(total * sizes.last // size)
        reading.set(name, sizes.iterations_in(samples), f"{option.text} {unit} with the ramp of the batch")

    return read


def ramp(reading: Reading, option: Option) -> None:
    """Keep a ramp; --train-samples and others then count its smaller batches."""
    reading.set_from(option, RAMP, [read_plain(word.text) for word in option.values])


def _sizes(reading: Reading) -> BatchSizes:
    """Return the batch sizes of the command, whose final one is known."""
    option = reading.options.get("rampup-batch-size")
    given = [read_plain(word.text) for word in option.values] if option else None
    return BatchSizes.with_ramp(int(reading.number("global-batch-size") or 0), given)


def train_tokens(reading: Reading, option: Option) -> None:
    """Read the number of tokens after which Megatron-DeepSpeed stops, even if --train-samples is larger."""
    total = reading.number(option.name)
    others = [_converted(reading, reading.number(f"train-{unit}"), unit, "tokens") for unit in ("iters", "samples")]
    if total and any(other and other <= total for other in others):
        return  # the other limit is reached first
    length("train_iters")(reading, option)


def _units_per_iteration(reading: Reading, unit: str) -> float | None:
    """Return how many iterations, samples or tokens one iteration has; None if a size is unknown."""
    batch, tokens = reading.number("global-batch-size"), reading.number("seq-length")
    return {"iters": 1, "samples": batch, "tokens": batch and tokens and batch * tokens}[unit]


def _converted(reading: Reading, number: float | None, unit: str, to: str) -> float | None:
    if number is None or unit == to:
        return number
    size, other = _units_per_iteration(reading, unit), _units_per_iteration(reading, to)
    return number / size * other if size and other else None


def warmup(reading: Reading, option: Option) -> None:
    unit = option.name.rpartition("-")[2]
    given, (until, from_unit) = reading.number(option.name), _end_of_decay(reading, unit)
    total = _converted(reading, until, from_unit, unit)
    words = "iterations" if unit == "iters" else unit
    if given == 0:
        reading.set("warmup", 0.0)
    elif given is not None and total:
        sizes, part = _sizes(reading), given / total
        if unit == "samples" and sizes.changes:
            part = sizes.iterations_in(int(given)) / max(1, sizes.iterations_in(int(total)))
            words += " with the ramp of the batch"
        reading.set("warmup", part, f"{option.text} of {total:.12g} {words}")
    else:
        hint = "set warmup in the new file to (warm-up iterations / lr_decay_iters, which is train_iters by default)"
        reading.leave_to_write(option, "warmup", hint, "" if total else f"the total number of {words} is unknown")


def _end_of_decay(reading: Reading, unit: str) -> tuple[float | None, str]:
    """Return the length of the learning rate decay, or of the run if it is not set, and its unit."""
    for prefix in ("lr-decay", "train"):
        for each in dict.fromkeys((unit, "tokens", "samples", "iters")):
            if number := reading.number(f"{prefix}-{each}"):
                return number, each
    return None, unit
