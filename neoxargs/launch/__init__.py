"""Turns a configuration into processes; `main.py` has the order of the stages."""
