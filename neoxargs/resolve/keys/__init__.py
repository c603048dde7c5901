"""Suggestions for a key that is not a parameter."""
