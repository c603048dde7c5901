"""Trackers: observers of a run for logs, metrics and services. Each is a `Tracker`; only the main rank has any."""

from __future__ import annotations

from neoxargs.train.track.tracker import (
    Answer,
    Answers,
    Evaluation,
    Outcome,
    Run,
    Step,
    TaskResults,
    Tracker,
)

__all__ = ["Answer", "Answers", "Evaluation", "Outcome", "Run", "Step", "TaskResults", "Tracker"]
