"""Reports about a launch: the summary before it starts, and the output of `--dry-run` and `--emit`."""
