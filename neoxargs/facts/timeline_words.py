"""Sentences and cells about a timeline, for a screen and for pages."""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.base.problems import listed
from neoxargs.base.text import format_bytes, format_count
from neoxargs.facts.description import counted
from neoxargs.facts.lr_schedule import rates
from neoxargs.facts.timeline import Drawn, Timeline, most_kept

#: Shares of the run at which the learning rate is listed.
SHARES = (0.25, 0.5, 0.75)
#: Batch sizes that are listed at most.
MAX_SIZES = 4
#: Checkpoints that are listed at most.
MAX_SAVES = 4


def learning_rate(timeline: Timeline) -> str:
    """Return the learning rate at the beginning, its peak, at the ends of phases or in between, and at the end."""
    rate, first, last = rates(timeline.config), timeline.start, timeline.iterations
    peak, _ = max(timeline.learning_rate, key=lambda point: point[1])
    between = timeline.ends_of_phases or [round(first + share * timeline.left) for share in SHARES]
    chosen = {iteration for iteration in (first + 1, peak, *between, last) if first < iteration <= last} or {last}
    return ", ".join(f"{rate(iteration - 1):.3g} in iteration {iteration:,}" for iteration in sorted(chosen))


def weight_decay(timeline: Timeline) -> str:
    """Return the weight decay of the first iteration that is left, and of the last."""
    (first, before), *_, (last, after) = timeline.weight_decays * 2
    return f"{before:.3g} in iteration {first:,}, {timeline.weight_decay.style} to {after:.3g} in iteration {last:,}"


def batch_sizes(timeline: Timeline) -> str:
    """Return the sizes of the batch and the iterations in which they begin, as many as fit into a line."""
    return _stairs(timeline.batches)


def sequence_lengths(timeline: Timeline) -> str:
    """Return the lengths of the sequences and the iterations in which they begin, as many as fit into a line."""
    return f"sequences of {_stairs(timeline.sequences)}"


def _stairs(found: Sequence[tuple[int, int]]) -> str:
    listed_all = len(found) <= MAX_SIZES
    some = [f"{size:,} from iteration {iteration:,}" for iteration, size in (found if listed_all else found[:2])]
    if listed_all:
        return listed(some, "and")
    iteration, size = found[-1]
    return f"{', '.join(some)}, ... {size:,} from iteration {iteration:,} ({len(found)} sizes)"


def evaluation(timeline: Timeline) -> str:
    """Return how often the run is evaluated."""
    done = timeline.evaluations
    tested = " and once on the test data" * timeline.tests
    if not done:
        return "none" if not tested else f"none but{tested.removeprefix(' and')}, at the end"
    batches = f"on {timeline.config.training.eval_iters:,} x {timeline.config.batch.train_batch_size:,} samples"
    batches += f" of each of {timeline.validation_sets} sets" * (timeline.validation_sets > 1)
    if len(done) == 1:
        return f"once{tested}, at the end, {batches}"
    return f"{len(done):,} times, every {timeline.config.training.eval_interval:,} iterations{tested}, {batches}"


def saves(timeline: Timeline) -> str:
    """Return when checkpoints are saved, and the disk space that they take."""
    done, size = timeline.saves, timeline.checkpoint_bytes
    if not done:
        return "none is left" if timeline.config.checkpoint.save else "none: save is not set"
    listed_all = len(done) <= MAX_SAVES
    some = [f"{iteration:,}" for iteration in (done if listed_all else done[: MAX_SAVES - 1])]
    first = listed(some, "and") if listed_all else f"{', '.join(some)}, ... {done[-1]:,}"
    text = f"{counted(len(done), 'checkpoint')} in {timeline.config.checkpoint.save}, after iteration {first}"
    if not size:
        return text + "; a size is not known without the vocabulary"
    options = timeline.config.checkpoint
    best = f" and the {options.keep_best_checkpoints} best" if options.keep_best_checkpoints else ""
    few = (most_kept(timeline.config) or len(done)) < len(done)
    removed = f", of which the last {options.keep_last_n_checkpoints}{best} are kept" if few else ""
    if len(done) == 1:
        return f"{text}: {format_bytes(size)}"
    return f"{text}{removed}: {format_bytes(size)} each, at most {format_bytes(timeline.disk_bytes)} on disk"


def columns(drawn: Drawn, timeline: Timeline) -> tuple[str, str, str]:
    """Return the tokens of one pass, the number of passes, and where the second begins."""
    if drawn.available is None or drawn.epochs is None:
        return "unknown", "", "there is no such token file yet"
    repeats = timeline.repeats_in(drawn)
    when = "never" if repeats is None else f"in iteration {repeats:,}"
    epochs = "<0.01" if drawn.epochs < 0.01 else f"{drawn.epochs:,.{2 if drawn.epochs < 100 else 0}f}"
    return format_count(drawn.available), epochs, when
