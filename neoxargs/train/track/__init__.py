"""Trackers: observers of a run for logs, metrics and services. Each is a `Tracker`; only the main rank has any."""

from __future__ import annotations

from neoxargs.train.track.tracker import Evaluation, Outcome, Run, Step, Tracker

__all__ = ["Evaluation", "Outcome", "Run", "Step", "Tracker"]
