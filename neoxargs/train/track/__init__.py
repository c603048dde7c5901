"""Observers of a run. Each is a `Tracker` with the moments it cares about; only the main rank has any."""

from __future__ import annotations

from neoxargs.train.track.tracker import Evaluation, Outcome, Run, Step, Tracker

__all__ = ["Evaluation", "Outcome", "Run", "Step", "Tracker"]
