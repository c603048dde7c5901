"""What a run will do: its timeline, time and money, what it continues, and what speaks against it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from neoxargs.base.problems import Problem, has_errors
from neoxargs.base.record import Record
from neoxargs.checks.all import problems
from neoxargs.checks.checkpoint.changes import changes, recorded_config
from neoxargs.checks.checkpoint.model import continued_checkpoint
from neoxargs.config.config import Config
from neoxargs.facts.lr_schedule import differing
from neoxargs.facts.timeline import Timeline
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.folder import position_of
from neoxargs.files.token_files.timeline import BEGINNING, timeline_of
from neoxargs.plan.estimate import Plan
from neoxargs.resolve.compare.differences import Difference

#: Operations of a forward pass, as a fraction of those of a training step without recomputation.
FORWARD = 1 / 3


class Forecast(Record):
    """A plan, seen along its iterations."""

    plan: Plan

    @property
    def config(self) -> Config:
        return self.plan.config

    @cached_property
    def problems(self) -> list[Problem]:
        """Warnings of the plan, and what a launch would say of the checkpoint that it loads."""
        found = problems(self.plan.spec, "train", ["files"])
        return [*self.plan.warnings, *(problem for problem in found if "load" in problem.about)]

    @property
    def ok(self) -> bool:
        """Whether the run fits, and a launch would accept the checkpoint."""
        return self.plan.fits and not has_errors(self.problems)

    @cached_property
    def continues(self) -> Path | None:
        """The checkpoint that the run continues from, with its iteration."""
        return continued_checkpoint(self.config)

    @cached_property
    def timeline(self) -> Timeline:
        """What is left of the run."""
        return timeline_of(self.config, position_of(self.continues, self.config.get) if self.continues else BEGINNING)

    @cached_property
    def differences(self) -> list[Difference]:
        """What differs from the run that is continued, by how much it matters; then its schedule and length."""
        saved = checkpoint_folder.configuration(self.continues) if self.continues else None
        if saved is None:
            return []
        before = recorded_config(saved).get
        schedule = [
            Difference((name,), (before(name), self.config.get(name)), True, (True, True))
            for name in [*differing(self.config.get, before), "train_iters"]
            if before(name) != self.config.get(name)
        ]
        return [*(each for level in changes(self.config, saved).values() for each in level), *schedule]

    @property
    def evaluation_seconds(self) -> float:
        """Of those on the validation split, and the one on the test split at the end."""
        speed, timeline = self.plan.speed, self.timeline
        done = len(timeline.evaluations) * timeline.validation_sets + timeline.tests
        batches = done * self.config.training.eval_iters
        return batches * (speed.step - speed.data - speed.optimizer) * FORWARD

    @property
    def seconds(self) -> float:
        """Of the iterations that are left, and their evaluations."""
        return (
            self.plan.speed.between(self.timeline.sizes, self.timeline.start + self.timeline.left)
            + self.evaluation_seconds
        )

    @property
    def cost(self) -> float | None:
        return self.plan.cost(self.seconds)
