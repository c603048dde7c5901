"""The checkpoints that a run saves: when, and what follows if one cannot be written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from neoxargs.base.problems import Problem, Problems
from neoxargs.facts.position import Position
from neoxargs.files.checkpoints.folder import written_by
from neoxargs.processes.watch import Progress
from neoxargs.registry.checkpoint import Checkpoint
from neoxargs.train.checkpoint.save_load import Checkpoints
from neoxargs.train.checkpoint.saving import Saved
from neoxargs.train.track.tracker import Evaluation
from neoxargs.train.track.trackers import Trackers

#: The id of the problem that a checkpoint cannot be written.
NOT_SAVED = "checkpoint-not-saved"


@dataclass
class Saves:
    """Saves checkpoints, and tells the trackers of each when it is complete. Collective."""

    options: Checkpoint
    saver: Checkpoints
    trackers: Trackers
    progress: Progress
    saved: Position | None = None
    """The position of the latest one, also if it is still written in the background."""
    validated: Evaluation | None = None
    """The last evaluation on the validation data."""

    def needed(self, position: Position) -> bool:
        """Whether a checkpoint of this position does not exist yet, and is to."""
        return bool(self.options.save) and position != self.saved

    def save(self, position: Position, last: bool = False) -> None:
        """Save a checkpoint. last: whether the run ends with it, so that it must be written."""
        self.progress.long(f"saving the checkpoint of step {position.iteration}")
        self.trackers.restore_folders()
        self.finish()
        self.saver.validation_loss = self._validation_loss(position.iteration)
        if self._complete(lambda: self.saver.save(position), last):
            self.saved = position

    def roll_back(self, checkpoints: int) -> Position | None:
        """Restore an earlier checkpoint, as `Checkpoints.roll_back`, and return its position; None if there is none."""
        self.progress.long("going back to an earlier checkpoint")
        self.finish()
        found = self.saver.roll_back(checkpoints)
        if found and self.saver.last and (loss := written_by(self.saver.last).validation_loss) is not None:
            self.validated = Evaluation(found.iteration, "validation", loss)
        return found

    def _validation_loss(self, iteration: int) -> float | None:
        """Return the validation loss of this iteration; None if it is not known, or not finite."""
        found = self.validated
        return found.loss if found and found.iteration == iteration and math.isfinite(found.loss) else None

    def finish(self, last: bool = False) -> None:
        """Wait for the checkpoint that is written in the background, if any, and make it visible."""
        self._complete(self.saver.finish, last)

    def problems_of_finishing(self) -> list[Problem]:
        """Finish the checkpoint, and return its problems instead of raising them."""
        try:
            self.finish()
        except Problems as unsaved:
            return unsaved.problems
        return []

    def end(self) -> None:
        """Finish the last checkpoint."""
        self.progress.long("completing the last checkpoint")
        self.finish(last=True)
        self.saver.close()

    def _complete(self, save: Callable[[], Saved | None], last: bool) -> bool:
        """Return whether `save` succeeded. Raises Problems if it did not, unless training goes on without it."""
        try:
            saved = save()
        except Problems as problems:
            only_unsaved = {problem.id for problem in problems.problems} == {NOT_SAVED}
            if last or self.options.on_save_error == "stop" or not only_unsaved:
                raise
            self.trackers.warn(problems.problems)
            return False
        if saved:
            self.trackers.tell(lambda tracker: tracker.on_save(saved.position.iteration, saved.folder))
        return True
