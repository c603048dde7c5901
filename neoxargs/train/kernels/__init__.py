"""Computation that has a fused form: attention, sparse attention, cross entropy, bias with dropout."""
