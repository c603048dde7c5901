"""Checks of checkpoints that a run loads or continues."""
