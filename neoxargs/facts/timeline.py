"""What a run does along its iterations: learning rate, data, evaluations and checkpoints. Closed forms only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import cached_property

from neoxargs.base.record import Record
from neoxargs.config.config import Config
from neoxargs.facts.batch import sequences_per_sample
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.lr_schedule import LearningRateCurve, rates
from neoxargs.facts.model import vocabulary_rows
from neoxargs.facts.optimizers import moments
from neoxargs.facts.position import Position
from neoxargs.facts.sequence_lengths import SequenceLengths
from neoxargs.facts.trained import trained_parameters
from neoxargs.facts.weight_decay import WeightDecay
from neoxargs.registry.checkpoint import Checkpoint

#: Iterations at which the learning rate is computed.
POINTS = 290


class Drawn(Record):
    """What training reads of a source."""

    name: str
    """The prefix of its token file."""
    curve: Sequence[tuple[float, float]]
    """Samples of the run, and tokens that are read of the source until then, repetitions included: from 0 to the run's
    end, with the samples at which its share changes."""
    available: float | None
    """Tokens of one pass; None if the file cannot be read."""

    @property
    def tokens(self) -> float:
        """Tokens that training reads from it, repetitions included."""
        return self.curve[-1][1]

    @property
    def epochs(self) -> float | None:
        return self.tokens / self.available if self.available else None

    def after(self, samples: float) -> float:
        """Return the tokens that are read of the source until so many samples of the run."""
        return _interpolated(self.curve, samples)

    @property
    def repeats_at(self) -> int | None:
        """The number of the sample in which a document is read a second time, about; None if none is."""
        if not self.epochs or self.epochs <= 1:
            return None
        rising = [(tokens, samples) for samples, tokens in self.curve]
        return int(_interpolated(rising, self.available or 0))


def _interpolated(curve: Sequence[tuple[float, float]], at: float) -> float:
    """Return the value of a curve through points that rises, or its last one."""
    for (x, y), (next_x, next_y) in itertools.pairwise(curve):
        if at <= next_x and next_x > x:
            return y + (next_y - y) * (at - x) / (next_x - x)
    return curve[-1][1]


class Timeline(Record):
    """A run along its iterations. What reads token files is given: see files/token_files/timeline.py."""

    config: Config
    position: Position = Position()
    """Where it goes on."""
    drawn: Sequence[Drawn] = ()
    """What training reads of each source in the whole run, with what was left out of it; empty if that depends on files
    that cannot be read."""
    validates: bool = False
    """Whether there is a validation split."""
    tests: bool = False
    """Whether the test split is evaluated at the end."""

    @property
    def start(self) -> int:
        """The iterations that are done already."""
        return self.position.iteration

    @property
    def iterations(self) -> int:
        return self.config.training.train_iters

    @property
    def left(self) -> int:
        """The iterations that are left."""
        return max(0, self.iterations - self.start)

    @cached_property
    def sizes(self) -> BatchSizes:
        """The batch sizes of the iterations that are left."""
        return self.position.onwards(BatchSizes.of(self.config.get))

    @cached_property
    def lengths(self) -> SequenceLengths:
        return SequenceLengths.of(self.config.get)

    @property
    def sequences(self) -> list[tuple[int, int]]:
        """Iterations, counted from 1, in which the sequences of the iterations that are left become longer, and it."""
        found = self.lengths.stages(self.sizes, max(self.iterations, self.start + 1))
        return [(iteration + 1, length) for iteration, length in found]

    @property
    def batches(self) -> list[tuple[int, int]]:
        """Iterations, counted from 1, in which the batch of the iterations that are left has a new size, and it."""
        first = min(self.start + 1, self.iterations)
        sizes = {max(stage.iteration + 1, first): stage.size for stage in self.sizes.stages}
        return [(iteration, size) for iteration, size in sizes.items() if iteration <= self.iterations]

    @property
    def tokens_per_sample(self) -> int:
        return sequences_per_sample(self.config) * self.config.shape.seq_length

    def tokens(self, iteration: int) -> int:
        """Return the tokens that are read up to an iteration."""
        return self.sizes.samples_after(iteration) * self.tokens_per_sample

    @property
    def tokens_left(self) -> int:
        return self.tokens(max(self.start, self.iterations)) - self.tokens(self.start)

    @property
    def samples_read(self) -> list[tuple[float, float]]:
        """A curve over the iterations: the samples that have been consumed."""
        before = [(0.0, 0.0)] if self.start else []
        return before + [(float(end), float(self.sizes.samples_after(end))) for end in self._ends()]

    def passes(self, drawn: Drawn) -> list[tuple[float, float]]:
        """Return a curve over the iterations: the passes over a source that have been read; no points if not known."""
        if not drawn.available:
            return []
        ends, left_out = self._ends(samples for samples, _ in drawn.curve), self.position.left_out
        points = [(float(end), drawn.after(self.sizes.samples_after(end) + left_out) / drawn.available) for end in ends]
        return [(0.0, 0.0), *points] if self.start else points

    def tokens_left_of(self, drawn: Drawn) -> float:
        """Return the tokens of a source that the iterations that are left read."""
        return drawn.tokens - (drawn.after(self.position.next_sample) if self.start else 0)

    def repeats_in(self, drawn: Drawn) -> int | None:
        """Return the iteration in which a document of a source is read a second time, about; None if none is."""
        return None if drawn.repeats_at is None else self._iteration_of(drawn.repeats_at) + 1

    def _ends(self, samples: Iterable[float] = ()) -> list[int]:
        """Return the iterations from the position to the end of the run where a curve over the samples may bend.

        samples: numbers of samples where it does so.
        """
        stages = {stage.iteration for stage in self.sizes.stages if stage.iteration < self.iterations}
        bends = {iteration for each in samples if (iteration := self._iteration_of(each)) >= self.start}
        return sorted({self.start, *stages, *bends, max(self.start, self.iterations)})

    def _iteration_of(self, sample: float) -> int:
        """Return the iterations before a sample; about, if it is one of those before the position."""
        if sample < self.position.next_sample:
            return min(self.start - 1, BatchSizes.of(self.config.get).iterations_in(int(sample)))
        return self.sizes.iterations_in(int(sample) - self.position.left_out)

    @property
    def ends_of_phases(self) -> list[int]:
        """Iterations of `lr_schedule`, counted from 1, in which a phase reaches its last rate."""
        return [end + 1 for _, end, *_ in LearningRateCurve.of(self.config.get).phases]

    @cached_property
    def learning_rate(self) -> list[tuple[int, float]]:
        """Iteration, counted from 1, and its learning rate: evenly spaced, with the first, the highest and the last.

        Of the iterations that are left; of the last one if none is.
        """
        rate, step = rates(self.config), max(1, self.iterations // POINTS)
        first, last = min(self.start + 1, self.iterations), self.iterations
        ends = {end for end in self.ends_of_phases if first <= end <= last}
        curve = {iteration: rate(iteration - 1) for iteration in {*range(first, last + 1, step), *ends, last}}
        # The peak lies between two points.
        highest = max(sorted(curve), key=curve.__getitem__)
        near = range(max(first, highest - step), min(last, highest + step) + 1)
        peak = max(near, key=lambda iteration: rate(iteration - 1))
        return sorted({**curve, peak: rate(peak - 1)}.items())

    @cached_property
    def weight_decay(self) -> WeightDecay:
        return WeightDecay.of(self.config.get)

    @property
    def weight_decays(self) -> list[tuple[int, float]]:
        """Iteration, counted from 1, and its weight decay: evenly spaced over those that are left, with the last."""
        first, last, step = min(self.start + 1, self.iterations), self.iterations, max(1, self.iterations // POINTS)
        return [(each, self.weight_decay.after(each - 1)) for each in sorted({*range(first, last, step), last})]

    @cached_property
    def evaluations(self) -> list[int]:
        """The iterations that are left after which the validation loss is computed."""
        options = self.config.training
        if not options.eval_iters or options.do_valid is False or not self.validates:
            return []
        every = options.eval_interval
        return self._left({*(range(every, self.iterations, every) if every else ()), self.iterations})

    @property
    def validation_sets(self) -> int:
        """How many sets of validation data each of these evaluations reads."""
        return len(self.config.data.validation or ()) or 1

    @cached_property
    def saves(self) -> list[int]:
        """The iterations that are left after which a checkpoint is saved."""
        if not self.config.checkpoint.save:
            return []
        return self._left({*save_iterations(self.config.checkpoint, self.iterations), self.iterations})

    def _left(self, chosen: set[int]) -> list[int]:
        return [iteration for iteration in sorted(chosen) if iteration > self.start]

    @property
    def checkpoint_bytes(self) -> int:
        return checkpoint_bytes(self.config)

    @property
    def disk_bytes(self) -> int:
        """The most that the checkpoints that are left to save take on disk at a time."""
        return most_at_once(len(self.saves), self.config) * self.checkpoint_bytes

    @property
    def disk(self) -> list[tuple[int, float]]:
        """Iteration, and bytes of checkpoints on disk after it."""
        kept, size = most_kept(self.config) or len(self.saves), self.checkpoint_bytes
        points = [(self.start, 0.0)]
        for number, iteration in enumerate(self.saves, 1):
            points += [(iteration, points[-1][1]), (iteration, float(min(number, kept) * size))]
        return points


def save_iterations(options: Checkpoint, train_iters: int) -> frozenset[int]:
    """Return the iterations after which a checkpoint is saved, in addition to the last one.

    With a linear scale, every `checkpoint_factor` iterations; with a log scale, iteration 1 and then each previous one
    times `checkpoint_factor`, rounded up. `extra_save_iters` are added.
    """
    factor, chosen = options.checkpoint_factor, set(options.extra_save_iters or ())
    if factor and options.checkpoint_scale == "linear":
        chosen |= set(range(int(factor), train_iters, int(factor)))
    elif factor and factor > 1:
        iteration = 1
        while iteration < train_iters:
            chosen.add(iteration)
            iteration = math.ceil(iteration * factor)
    return frozenset(each for each in chosen if 0 < each < train_iters)


def checkpoint_bytes(config: Config) -> int:
    """Return the size of a checkpoint: weights in compute precision, fp32 master weights and optimizer state.

    The latter two are not saved with `no_save_optim`. 0 if the vocabulary size is not known.
    """
    rows = vocabulary_rows(config)
    if rows is None:
        return 0
    half = config.precision.precision != "fp32"
    states = 0 if config.checkpoint.no_save_optim else 4 * (moments(config) + half)
    # 4 bytes for each moment, and for the master weights that half precision needs.
    return trained_parameters(config, rows) * ((2 if half else 4) + states)


def most_at_once(written: int, config: Config) -> int:
    """Return the largest number of checkpoints that `save` holds at a time, of so many that are written."""
    kept = most_kept(config)
    # One more than are kept, because the oldest is removed only after the newest is complete.
    return min(written, kept + 1) if kept else written


def most_kept(config: Config) -> int | None:
    """Return how many checkpoints `save` holds at most after one has been saved; None if all are kept."""
    options = config.checkpoint
    newest = options.keep_last_n_checkpoints
    return newest and newest + (options.keep_best_checkpoints or 0)
