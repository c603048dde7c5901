"""Start, watch and end the ranks of a run together, and find out which rank failed first, and why."""
