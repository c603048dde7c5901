"""A configuration becomes processes: `main.py` has the order of the stages."""
