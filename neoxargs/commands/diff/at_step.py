"""`--at STEP`: the learning rate, the tokens seen, the batch and the data mixture of both runs at a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from neoxargs.base.text import format_count
from neoxargs.commands.diff.side import Side
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.data import path_list
from neoxargs.facts.lr_schedule import LearningRateCurve

#: Label -> returns the text of a side at a step, which counts from 1 as in the log.
Row = Callable[[Side, int], str]


def rows(a: Side, b: Side, step: int) -> list[tuple[str, str, str]]:
    """Return label and both texts of each quantity."""
    return [(label, text(a, step), text(b, step)) for label, text in ROWS.items()]


def _learning_rate(side: Side, step: int) -> str:
    if side.get("scheduler.type"):
        return f"set by DeepSpeed's {side.get('scheduler.type')}"
    if step > side.get("train_iters"):
        return f"the run ends at step {side.get('train_iters')}"
    # Steps count from 1 here, and iterations from 0.
    return f"{LearningRateCurve.of(side.get).rate(step - 1):.6g}"


def _batch(side: Side, step: int) -> str:
    samples = BatchSizes.of(side.get).of_iteration(step - 1)
    return f"{samples:,} samples, {format_count(samples * side.get('seq_length'))} tokens"


def _mixture(side: Side, step: int) -> str:
    if side.get("weight_by_num_documents"):
        return "weighted by the number of documents"
    shares = list(_weights(side))
    total = sum(weight for _, weight in shares)
    if len(shares) < 2 or not total:
        return ", ".join(path for path, _ in shares) or "not set"
    return ", ".join(f"{path} {100 * weight / total:.3g} %" for path, weight in shares)


def _weights(side: Side) -> Iterator[tuple[str, float]]:
    """Yield every training dataset and its weight."""
    blended = side.get("data_path")
    if isinstance(blended, list) and len(blended) > 1:
        # Weights and paths alternate, as in Megatron.
        yield from ((str(path), float(weight)) for weight, path in zip(blended[::2], blended[1::2], strict=True))
        return
    sources = [side.get(name) for name in ("train_data_paths", "data_path", "text_path")]
    paths: str | list[str] = next(filter(None, sources), [])
    weights = side.get("train_data_weights") if side.get("train_data_paths") else None
    names = path_list(paths)
    yield from zip(names, weights or [1.0] * len(names), strict=True)


ROWS: dict[str, Row] = {
    "learning rate": _learning_rate,
    "tokens seen": lambda side, step: format_count(
        BatchSizes.of(side.get).samples_after(min(step, side.get("train_iters"))) * side.get("seq_length")
    ),
    "batch": _batch,
    "data": _mixture,
}
