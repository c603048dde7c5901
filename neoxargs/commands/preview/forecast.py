"""What a run will do: learning rate, data, evaluations, checkpoints, time and money. Closed forms only."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from neoxargs.base.problems import Problem
from neoxargs.base.record import Record
from neoxargs.checks.all import problems
from neoxargs.checks.checkpoint.changes import changes, recorded_config
from neoxargs.checks.checkpoint.model import loaded_checkpoint
from neoxargs.checks.machine.disk_space import checkpoint_bytes, most_at_once
from neoxargs.config.config import Config
from neoxargs.facts.lr_schedule import differing, rates
from neoxargs.facts.timeline import evaluation_iterations, save_iterations
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.token_files.sources import Part, Source, sources
from neoxargs.launch.start.prepare import with_text
from neoxargs.plan.estimate import Plan
from neoxargs.resolve.compare.differences import Difference
from neoxargs.runs.drawn import Drawn, drawn

#: Iterations at which curves are computed.
POINTS = 290
#: Operations of a forward pass, as a fraction of those of a training step without recomputation.
FORWARD = 1 / 3


class Forecast(Record):
    """A plan, seen along its iterations."""

    plan: Plan
    price: float | None = None
    """Of one device for an hour."""

    @property
    def config(self) -> Config:
        return self.plan.config

    @cached_property
    def problems(self) -> list[Problem]:
        """Warnings of the plan, and what a launch would say of the checkpoint that it loads."""
        found = problems(self.plan.spec, "train", ["files"])
        return [*self.plan.warnings, *(problem for problem in found if "load" in problem.about)]

    @property
    def iterations(self) -> int:
        return self.config.training.train_iters

    @property
    def tokens_per_iteration(self) -> int:
        return self.plan.speed.tokens

    @cached_property
    def continues(self) -> Path | None:
        """The checkpoint that the run continues from, with its iteration."""
        found = None if self.config.checkpoint.finetune else loaded_checkpoint(self.config)
        return found if found and checkpoint_folder.iteration_of(found) else None

    @cached_property
    def start(self) -> int:
        """The iterations that are done already."""
        return checkpoint_folder.iteration_of(self.continues) or 0 if self.continues else 0

    @property
    def left(self) -> int:
        """The iterations that are left."""
        return max(0, self.iterations - self.start)

    @cached_property
    def differences(self) -> list[Difference]:
        """What differs from the run that is continued, in the order of how much it matters; then its schedule."""
        saved = checkpoint_folder.configuration(self.continues) if self.continues else None
        if saved is None:
            return []
        before = recorded_config(saved).get
        schedule = [
            Difference((name,), (before(name), self.config.get(name)), True, (True, True))
            for name in differing(self.config.get, before)
        ]
        return [*(each for level in changes(self.config, saved).values() for each in level), *schedule]

    @cached_property
    def learning_rate(self) -> list[tuple[int, float]]:
        """Iteration, counted from 1, and its learning rate: evenly spaced, with the first, the highest and the last.

        Of the iterations that are left; of the last one if none is.
        """
        rate, step = rates(self.config), max(1, self.iterations // POINTS)
        first, last = min(self.start + 1, self.iterations), self.iterations
        curve = {iteration: rate(iteration - 1) for iteration in {*range(first, last + 1, step), last}}
        # The peak lies between two points.
        highest = max(curve, key=curve.__getitem__)
        near = range(max(first, highest - step), min(last, highest + step) + 1)
        peak = max(near, key=lambda iteration: rate(iteration - 1))
        return sorted({**curve, peak: rate(peak - 1)}.items())

    @cached_property
    def _sources(self) -> dict[Part, list[Source]]:
        config = with_text(self.config)
        return sources(config.data, config.post_training)

    @cached_property
    def drawn(self) -> list[Drawn]:
        """What training reads of each source; empty if that depends on token files that cannot be read."""
        return drawn(with_text(self.config))

    @cached_property
    def evaluations(self) -> list[int]:
        """The iterations after which the validation loss is computed."""
        options = self.config.training
        if not options.eval_iters or options.do_valid is False or not self._sources["validation"]:
            return []
        chosen = {*evaluation_iterations(self.config), self.iterations}
        return [iteration for iteration in sorted(chosen) if iteration > self.start]

    @property
    def tests(self) -> bool:
        """Whether the test split is evaluated at the end."""
        options = self.config.training
        wanted = options.eval_iters and options.do_test is not False and self._sources["test"]
        return bool(wanted) and self.left > 0

    @cached_property
    def saves(self) -> list[int]:
        """The iterations after which a checkpoint is saved."""
        if not self.config.checkpoint.save:
            return []
        chosen = {*save_iterations(self.config.checkpoint, self.iterations), self.iterations}
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
        kept, size = self.config.checkpoint.keep_last_n_checkpoints or len(self.saves), self.checkpoint_bytes
        points = [(0, 0.0)]
        for number, iteration in enumerate(self.saves, 1):
            points += [(iteration, points[-1][1]), (iteration, float(min(number, kept) * size))]
        return points

    @property
    def evaluation_seconds(self) -> float:
        """Of those on the validation split, and the one on the test split at the end."""
        speed, batches = self.plan.speed, (len(self.evaluations) + self.tests) * self.config.training.eval_iters
        return batches * (speed.step - speed.data - speed.optimizer) * FORWARD

    @property
    def seconds(self) -> float:
        """Of the iterations that are left, and their evaluations."""
        return self.left * self.plan.speed.step + self.evaluation_seconds

    @property
    def cost(self) -> float | None:
        return None if self.price is None else self.price * self.seconds / 3600 * self.plan.layout.ranks
