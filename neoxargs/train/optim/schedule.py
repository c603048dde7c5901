"""Sets learning rate and weight decay of an optimizer's groups before each step.

The curves themselves are `facts/lr_schedule.py` and `facts/weight_decay.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.record import as_dict, replace
from neoxargs.config.config import Config
from neoxargs.facts.lr_schedule import LearningRateCurve
from neoxargs.facts.weight_decay import WeightDecay


class Optimizer(Protocol):
    """The part of an optimizer that a schedule uses."""

    param_groups: list[dict[str, Any]]


class Schedule:
    """Sets the learning rate of every parameter group; DeepSpeed calls `step` after each update it did not skip.

    reload: the curve to use if the checkpoint has a different one: `ours` (this run's), `theirs` (the checkpoint's), or
    `neither`, which raises Problems. decay: of the groups whose weights decay; None if it stays that of the optimizer.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        curve: LearningRateCurve,
        reload: str = "neither",
        decay: WeightDecay | None = None,
    ) -> None:
        self.optimizer, self.curve, self.reload, self.decay = optimizer, curve, reload, decay
        #: Of each group, relative to `weight_decay`: muP multiplies some, and biases and norms have none.
        self._decays = [group["weight_decay"] / decay.usual if decay else 0.0 for group in optimizer.param_groups]
        # Sets the first update's rate; DeepSpeed calls `step` only after an update.
        self._move_to(0)

    def step(self) -> None:
        self._move_to(self.iteration + 1)

    def get_lr(self) -> list[float]:
        """Return the learning rate of the next update, one per parameter group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    get_last_lr = get_lr

    def state_dict(self) -> dict[str, Any]:
        return {"iteration": self.iteration, **as_dict(self.curve)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a checkpoint's schedule; raise Problems if its curve differs and `reload` is `neither`."""
        saved = LearningRateCurve(**{name: state.get(name, mine) for name, mine in as_dict(self.curve).items()})
        if self.reload == "neither":
            _require_same(self.curve, saved)
        if self.reload == "theirs":
            self.curve = saved
        self._move_to(state["iteration"])

    def set_again(self) -> None:
        """Set the rates of the next update again, after the optimizer has loaded those of a checkpoint."""
        self._move_to(self.iteration)

    def _move_to(self, iteration: int) -> None:
        self.iteration = iteration
        rate = self.curve.rate(iteration)
        for group, relative in zip(self.optimizer.param_groups, self._decays, strict=True):
            group["lr"] = rate / group.get("width_mult", 1)  # muP: the learning rate shrinks with the width
            if self.decay:
                group["weight_decay"] = relative * self.decay.after(iteration)


def build_schedule(config: Config, optimizer: Optimizer) -> Schedule:
    """Build the schedule that the configuration describes."""
    options = config.schedule
    reload = "ours" if options.override_lr_scheduler else "theirs" if options.use_checkpoint_lr_scheduler else "neither"
    decay = WeightDecay.of(config.get)
    return Schedule(optimizer, LearningRateCurve.of(config.get), reload, None if decay.is_usual else decay)


def continue_schedule(schedule: Any, state: Mapping[str, Any]) -> None:
    """Continue a checkpoint's schedule with a new optimizer, whose learning rate is that of the first iteration.

    schedule: ours, one of DeepSpeed's, or None. state: of the run, with its iteration and the state of its schedule.
    Raises Problems if the checkpoint has a different schedule.
    """
    saved = state.get("lr_scheduler") or {}
    if isinstance(schedule, Schedule):
        schedule.load_state_dict({"iteration": state["iteration"], **saved})
    elif schedule is not None:
        # DeepSpeed's schedules count from 0 and save the last step that was taken.
        schedule.step(saved.get("last_batch_iteration", state["iteration"] - 1))


def _require_same(ours: LearningRateCurve, saved: LearningRateCurve) -> None:
    hint = (
        "set override_lr_scheduler: true to use this run's schedule, "
        "or use_checkpoint_lr_scheduler: true to use the checkpoint's"
    )
    theirs = as_dict(replace(saved, from_zero=ours.from_zero))  # which concerns the first iteration only
    different = [(name, mine, theirs[name]) for name, mine in as_dict(ours).items() if mine != theirs[name]]
    if different:
        about = "override_lr_scheduler", "use_checkpoint_lr_scheduler"
        what = "the learning rate schedules differ: {} is {} in this run and {} in the checkpoint"
        raise Problems(
            Problem(what.format(*each), hint=hint, id="checkpoint-other-lr-schedule", about=about) for each in different
        )
