"""A shell script's words and commands, read without running it."""
