"""The rates of a machine, from the step times of runs on it."""
