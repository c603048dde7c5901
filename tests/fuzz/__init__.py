"""Fuzzing: mutated configurations, and checks of the answers to them."""
