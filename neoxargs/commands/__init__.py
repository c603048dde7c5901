"""Commands that start nothing: check, checkpoints, diff, explain, docs."""
