"""When a run whose losses or gradients are infinite or NaN ends, as `on_divergence` and `max_skipped_steps` say."""

from __future__ import annotations

import math
from pathlib import Path

from neoxargs.base.problems import Problem
from neoxargs.registry.training import Training
from neoxargs.train.engine.spikes import ACTING
from neoxargs.train.engine.steps import Result


def latest_checkpoint(last: Path | None) -> str:
    return f"the latest checkpoint is {last}" if last else "no checkpoint has been saved"


class Divergence:
    """Counts the steps in a row that failed and from which fp16's loss scale does not recover."""

    def __init__(self, options: Training) -> None:
        self.options, self.in_a_row = options, 0

    def ends_run(self, result: Result) -> bool:
        """Whether training stops after a step with this result."""
        if result.spike is not None and self.options.on_spike in ACTING:
            self.in_a_row = 0
            return False
        stops, finite = self.options.on_divergence == "stop", math.isfinite(result.loss)
        # fp16 skips steps with an overflow and lowers a dynamic loss scale; their loss may be infinite.
        if stops and (result.diverged or not (finite or result.overflowed)):
            return True
        recovers = result.overflowed and not result.scale_is_fixed and (finite or stops)
        failed = result.diverged or not finite or result.skipped
        self.in_a_row = self.in_a_row + 1 if failed and not recovers else 0
        return self.in_a_row >= self.options.max_skipped_steps

    def problem(self, result: Result, iteration: int, last: Path | None) -> Problem:
        """Return why the run ended with this result. last: the latest checkpoint."""
        where = f", {result.where}" if result.where else ""
        latest = latest_checkpoint(last)
        if self.in_a_row < self.options.max_skipped_steps:
            finite = math.isfinite(result.loss)
            found = "a gradient is infinite or NaN" if finite else f"the loss is {result.loss}"
            what = f"{found} at iteration {iteration}{where}; training stopped without saving; {latest}"
            hint = "to prevent divergence, set a lower lr, a longer warmup, or gradient_clipping"
            id = "gradient-not-finite" if finite else "loss-not-finite"
            return Problem(what, hint=hint, id=id, about=("lr", "warmup", "gradient_clipping"))
        what = f"max_skipped_steps ({self.options.max_skipped_steps}) was reached at iteration {iteration}, because "
        what += f"losses or gradients were infinite or NaN{where}; training stopped without saving; {latest}"
        hint = "set iteration to continue from an earlier checkpoint, and set a lower lr or gradient_clipping"
        about = ["max_skipped_steps", "on_divergence", "lr", "gradient_clipping"]
        if result.scale_is_fixed:
            hint += ", or remove fp16.loss_scale, so that the loss scale is lowered after an overflow"
            about.append("fp16.loss_scale")
        return Problem(what, hint=hint, id="steps-keep-diverging", about=tuple(about))


def too_many_spikes(options: Training, spike: str, last: Path | None) -> Problem:
    """Return why the run ended at a spike. spike: what it is. last: the latest checkpoint."""
    what = f"max_spikes ({options.max_spikes}) was exceeded: {spike}; training stopped without saving; "
    what += latest_checkpoint(last)
    hint = "look at the samples of the spikes; set a lower lr or gradient_clipping, or a higher spike_threshold or "
    hint += "max_spikes"
    about = ("max_spikes", "on_spike", "spike_threshold", "lr", "gradient_clipping")
    return Problem(what, hint=hint, id="spikes-keep-coming", about=about)


def nothing_to_roll_back_to(options: Training, spike: str, save: str | None) -> Problem:
    """Return why the run ended at a spike before its first checkpoint."""
    what = f"on_spike ({options.on_spike}): save ({save}) has no undamaged checkpoint of this run from before the "
    what += f"spike: {spike}"
    hint = "save earlier (checkpoint_factor, extra_save_iters), or set on_spike: skip for the beginning of the run"
    return Problem(what, hint=hint, id="spike-before-first-checkpoint", about=("on_spike", "save", "checkpoint_factor"))
