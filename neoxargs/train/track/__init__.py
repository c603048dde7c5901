"""Trackers: observers of a run for logs, metrics and services. Each is a `Tracker`; only the main rank has any."""
