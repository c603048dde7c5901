"""`--at STEP`: the learning rate, the tokens seen, the batch and the data mixture of both runs at a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from neoxargs.base.text import format_count
from neoxargs.commands.diff.side import Side
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.data import blend, path_list
from neoxargs.facts.lr_schedule import LearningRateCurve
from neoxargs.facts.mixture import PARAMETERS as MIXTURE
from neoxargs.facts.mixture import mixture_of
from neoxargs.facts.sequence_lengths import SequenceLengths
from neoxargs.files.token_files.sources import sources
from neoxargs.files.token_files.timeline import mixture_schedule

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
    sizes, lengths = BatchSizes.of(side.get), SequenceLengths.of(side.get)
    samples = sizes.of_iteration(step - 1)
    cut = f", in sequences of {lengths.after(sizes.samples_after(step - 1)):,}" if lengths.changes else ""
    return f"{samples:,} samples, {format_count(samples * side.get('seq_length'))} tokens{cut}"


def _mixture(side: Side, step: int) -> str:
    if any(side.get(name) for name in MIXTURE):
        return _shares(side, step)
    if side.get("weight_by_num_documents"):
        return "weighted by the number of documents"
    return _as_text(list(_weights(side)))


def _shares(side: Side, step: int) -> str:
    """Return the shares of a mixture (facts/mixture.py) at a step."""
    config = side.config
    of = sources(config.data, config.post_training)["train"]
    mixture = mixture_of(side.get, len(of))
    found = mixture_schedule(config, of, mixture) if mixture else None
    if found is None:
        return "depends on the sizes of token files that cannot be read"
    shares = found.shares_at(BatchSizes.of(side.get).samples_after(step - 1))
    return _as_text([(source.prefix, share) for source, share in zip(of, shares, strict=True)])


def _as_text(shares: Sequence[tuple[str, float | None]]) -> str:
    """Return paths with their weights as percentages. None: the number of tokens, which is not read."""
    paths, weights = [path for path, _ in shares], [weight for _, weight in shares if weight is not None]
    if len(shares) < 2 or (len(weights) == len(shares) and not sum(weights)):
        return ", ".join(paths) or "not set"
    if len(weights) < len(shares):
        return f"{', '.join(paths)} by their numbers of tokens"
    return ", ".join(f"{path} {100 * weight / sum(weights):.3g} %" for path, weight in zip(paths, weights, strict=True))


def _weights(side: Side) -> Iterator[tuple[str, float | None]]:
    """Yield every training dataset and its weight."""
    if paths := side.get("train_data_paths"):
        names = path_list(paths)
        yield from zip(names, side.get("train_data_weights") or [1.0] * len(names), strict=True)
    elif blended := side.get("data_path"):
        yield from blend(blended)
    else:
        yield from ((path, None) for path in path_list(side.get("text_path") or []))


ROWS: dict[str, Row] = {
    "learning rate": _learning_rate,
    "tokens seen": lambda side, step: format_count(
        BatchSizes.of(side.get).samples_after(min(step, side.get("train_iters"))) * side.get("seq_length")
    ),
    "batch": _batch,
    "data": _mixture,
}
