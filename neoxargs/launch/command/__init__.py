"""The command that a launcher runs."""
