"""Traces a rank of a run on tensors that have a shape and a device but no values, for plan_against_trace.py."""
