"""Inputs that nobody wrote by hand: mutated configurations, and what a good answer to each is."""
