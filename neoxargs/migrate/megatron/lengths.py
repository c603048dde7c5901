"""Flags that count iterations, samples or tokens: the length of the run, of the learning rate decay, of the warm-up."""

from __future__ import annotations

from collections.abc import Callable

from neoxargs.base.problems import Problem
from neoxargs.facts.batch_sizes import PHASES, RAMP
from neoxargs.facts.length_units import length as length_of
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
        reading.set(name, int(total // size), f"{option.text} {unit} / {size:.12g}{rounding}")

    return read


def ramp(reading: Reading, option: Option) -> None:
    reading.set_from(option, RAMP, [read_plain(word.text) for word in option.values])


def batch_phases(reading: Reading, option: Option) -> None:
    """Read `0:768 250B:1536`: tokens after which a batch has a size, and that size."""
    pairs = [pair.partition(":") for word in option.values for pair in word.text.split()]
    begins, sizes = [begin for begin, _, _ in pairs], [read_plain(size) for _, _, size in pairs]
    ends = [f"{end} tokens" for end in begins[1:]]
    if begins[:1] != ["0"] or None in map(length_of, ends) or not all(isinstance(size, int) for size in sizes):
        hint = f"set {PHASES} in the new file to the sizes of the batch, and where each ends"
        reading.leave_to_write(option, PHASES, hint)
        return
    listed = [{"until": end, "size": size} for end, size in zip(ends, sizes[:-1], strict=True)]
    reading.set(PHASES, [*listed, {"size": sizes[-1]}])
    reading.set("train_batch_size", sizes[-1])


def samples(name: str, in_iterations: str) -> Callable[[Reading, Option], None]:
    """Keep a number of samples with a ramp of the batch, and convert it to iterations otherwise. Tokens become them."""

    def read(reading: Reading, option: Option) -> None:
        total, unit = reading.number(option.name), option.name.rpartition("-")[2]
        found = _converted(reading, total, unit, "samples")
        if not reading.options.keys() & {"rampup-batch-size", "step-batch-size-schedule"}:
            length(in_iterations)(reading, option)
        elif not found:
            reading.leave_to_write(option, name, f"set {name} in the new file")
        else:
            reading.set(name, int(found), "" if unit == "samples" else f"{option.text} tokens / sequence length")

    return read


def train_tokens(reading: Reading, option: Option) -> None:
    """Read the number of tokens after which Megatron-DeepSpeed stops, even if --train-samples is larger."""
    total = reading.number(option.name)
    others = [_converted(reading, reading.number(f"train-{unit}"), unit, "tokens") for unit in ("iters", "samples")]
    if total and any(other and other <= total for other in others):
        return  # the other limit is reached first
    samples("train_samples", "train_iters")(reading, option)


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
    if (fraction := reading.options.get("lr-warmup-fraction")) and unit != "tokens":
        if given != 0:  # Megatron-LM accepts 0, its default, beside the fraction
            what = f"{fraction} and {option} exclude each other, and Megatron-LM refuses them together"
            hint = "remove one of them"
            reading.problems.append(Problem(what, option.place, hint, (fraction.place,), id="migrate-flag-value"))
    elif given == 0:
        reading.set("warmup", 0.0)
    elif given is not None and total:
        reading.set("warmup", given / total, f"{option.text} of {total:.12g} {words}")
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
